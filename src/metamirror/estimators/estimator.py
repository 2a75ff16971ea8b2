"""Few-shot learning with scikit-learn's habits: fit on a handful of examples, predict, save."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators.base import FewShotEstimator, Reader, read
from metamirror.estimators.calibration import calibrated_temperature
from metamirror.estimators.fitting import adapt
from metamirror.estimators.labels import FirstOutputs, as_labels, check_count, classes_of
from metamirror.estimators.sklearn_api import check_flag
from metamirror.estimators.starts import Start
from metamirror.estimators.targets import as_targets


class FewShotClassifier(FewShotEstimator):
    """Tells classes apart from a few examples of each, by adapting a meta-learned start.

    Examples are numpy arrays, torch tensors, lists of PIL pictures or of files; grey or colour, of
    any size, bytes or floats in [0, 1]. Labels are anything that can be hashed. There may be fewer
    classes than the start has outputs, and more examples of some than of others. Normalisation
    uses the statistics of these examples, so that a prediction depends on its picture alone.

    Args:
        start: a shipped start's name, a run folder, a folder of `metamirror.save`, or a `Learner`.
        steps: inner steps, if other than the start's.
        lr: inner step size, if other than the start's.
        early_stopping: stop at a step that lowers the loss of the examples by less than `tol`
            times its first value; a step that raises it is taken back.
        tol: that share.
        calibrate: fit a temperature on held-out examples; needs two of each class.
        invert: exchange dark and light. The shipped starts know light ink on a dark ground.
        ink: look for what is drawn, dark on light or light on dark, and bring it to the size and
            place of a letter, as the playground does.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        random_state: seed of the method's own noise; most methods have none.

    Attributes:
        classes_: the labels, in order.
        losses_: the loss of the examples before each step and after the last.
        n_steps_: how many steps were made.
        adaptation_seconds_: how long they took.
        temperature_: what logits are divided by; 1 unless calibrated.
        n_features_in_: the length of the rows, where X was a table.

    >>> import metamirror as mm
    >>> task = mm.tasks("glyphs", split="test", batch=1)[0]  # 5 new letters, one example of each
    >>> clf = mm.FewShotClassifier().fit(task.support.x[0], list("abcde"))
    >>> clf.predict_proba(task.query.x[0]).shape
    (75, 5)
    """

    _estimator_type: Literal["classifier", "regressor"] = "classifier"

    def __init__(
        self,
        start: Start = "glyphs-blockiaf",
        *,
        steps: int | None = None,
        lr: float | None = None,
        early_stopping: bool = False,
        tol: float = 1e-3,
        calibrate: bool = False,
        invert: bool = False,
        ink: bool = False,
        device: str = "auto",
        random_state: Any = None,
    ):
        self.start = start
        self.steps = steps
        self.lr = lr
        self.early_stopping = early_stopping
        self.tol = tol
        self.calibrate = calibrate
        self.invert = invert
        self.ink = ink
        self.device = device
        self.random_state = random_state

    # Programs that only predict switch gradients off for good; adapting needs them.
    @torch.inference_mode(False)
    def fit(self, X: Any, y: Any) -> Self:
        """Adapts the start to examples and their labels.

        Args:
            X: the examples.
            y: a label for each.
        """
        learner = self._open()
        reader = self._reader(learner)
        x = read(reader, learner, X)
        self._fit(learner, reader, x, as_labels(y, len(x)))
        self._note_features(X)
        return self

    @torch.inference_mode(False)
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Adds examples to those there are, and adapts to all of them, again from the start.

        Args:
            X: more examples.
            y: a label for each; new classes may come.
            classes: all labels that may ever come, if others are to be refused.
        """
        if not hasattr(self, "adapted_"):
            learner, before = self._open(), None
            reader = self._reader(learner)
        else:
            learner, reader, before = self.learner_, self.reader_, self.support_
            self._check_features(X)
        x = read(reader, learner, X)
        labels = as_labels(y, len(x))
        if classes is not None:
            announced = as_labels(list(classes), len(classes))
            if unknown := [label for label in labels if label not in announced]:
                raise ValueError(f"y holds {unknown[0]!r}, which is not in classes: {announced!r}")
        if before is not None:
            x = torch.cat([before.x, x])
            labels = [*self.classes_[before.y.cpu().numpy()].tolist(), *labels]
        self._fit(learner, reader, x, labels)
        self._note_features(X)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest label of each example."""
        likeliest = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[likeliest]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class (columns, in the order of `classes_`) for each example."""
        logits = self._ask(X)[:, : len(self.classes_)].double()
        found: NDArray[np.float64] = (logits / self.temperature_).softmax(1).numpy()
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of examples whose label is predicted."""
        predicted = self.predict(X).tolist()
        right = [p == t for p, t in zip(predicted, as_labels(y, len(predicted)), strict=True)]
        return float(np.average(right, weights=sample_weight))

    def _fit(self, learner: Learner, reader: Reader, x: torch.Tensor, labels: list[Any]) -> None:
        """Adapts, and only then forgets what was there before."""
        check_flag("calibrate", self.calibrate)
        classes = classes_of(labels)
        check_count(classes, learner.outputs(x))
        place = {label: i for i, label in enumerate(classes.tolist())}
        support = Batch(x, torch.tensor([place[label] for label in labels], device=x.device))
        own = learner.loss.loss if isinstance(learner.loss, FirstOutputs) else learner.loss
        learner.loss = FirstOutputs(len(classes), own)
        how = self._how()
        temperature = 1.0
        if self.calibrate:
            temperature = calibrated_temperature(learner, support, len(classes), how)
        self._keep(learner, reader, support, adapt(learner, support, how))
        self.classes_, self.temperature_ = classes, temperature


class FewShotRegressor(FewShotEstimator):
    """Predicts quantities from a few examples, by adapting a meta-learned start.

    As `FewShotClassifier`, with numbers in place of labels: one for each example, or as many as
    the start's model has outputs.

    Args:
        start: a shipped start's name, a run folder, a folder of `metamirror.save`, or a `Learner`.
        steps: inner steps, if other than the start's.
        lr: inner step size, if other than the start's.
        early_stopping: stop at a step that lowers the loss of the examples by less than `tol`
            times its first value; a step that raises it is taken back.
        tol: that share.
        invert: exchange dark and light, where examples are pictures.
        ink: look for what is drawn on them, as in `FewShotClassifier`.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        random_state: seed of the method's own noise; most methods have none.

    Attributes:
        losses_: the mean squared error of the examples before each step and after the last.
        n_steps_: how many steps were made.
        adaptation_seconds_: how long they took.
        n_features_in_: the length of the rows, where X was a table.

    >>> import metamirror as mm
    >>> task = mm.tasks("sinusoid", split="test", shots=10, batch=1)[0]
    >>> curve = mm.FewShotRegressor().fit(task.support.x[0], task.support.y[0])
    >>> curve.predict(task.query.x[0]).shape
    (15, 1)
    """

    _estimator_type: Literal["classifier", "regressor"] = "regressor"

    def __init__(
        self,
        start: Start = "sinusoid-metasgd",
        *,
        steps: int | None = None,
        lr: float | None = None,
        early_stopping: bool = False,
        tol: float = 1e-3,
        invert: bool = False,
        ink: bool = False,
        device: str = "auto",
        random_state: Any = None,
    ):
        self.start = start
        self.steps = steps
        self.lr = lr
        self.early_stopping = early_stopping
        self.tol = tol
        self.invert = invert
        self.ink = ink
        self.device = device
        self.random_state = random_state

    @torch.inference_mode(False)
    def fit(self, X: Any, y: Any) -> Self:
        """Adapts the start to examples and their values.

        Args:
            X: the examples.
            y: a number for each, or a row of numbers.
        """
        learner = self._open()
        reader = self._reader(learner)
        x = read(reader, learner, X)
        self._fit(learner, reader, x, *as_targets(y, len(x)))
        self._note_features(X)
        return self

    @torch.inference_mode(False)
    def partial_fit(self, X: Any, y: Any) -> Self:
        """Adds examples to those there are, and adapts to all of them, again from the start."""
        if not hasattr(self, "adapted_"):
            return self.fit(X, y)
        self._check_features(X)
        x = read(self.reader_, self.learner_, X)
        targets, flat = as_targets(y, len(x))
        before = self.support_
        if targets.shape[1] != before.y.shape[1]:
            raise ValueError(
                f"y has {targets.shape[1]} values a row, and fit had {before.y.shape[1]}; they "
                f"must be equal"
            )
        everything = torch.cat([before.y, targets.to(before.y)])
        self._fit(self.learner_, self.reader_, torch.cat([before.x, x]), everything, flat)
        self._note_features(X)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The values of each example; one axis where `fit` was given one."""
        found: NDArray[np.float64] = self._ask(X).double().numpy()
        return found[:, 0] if self.flat_ else found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The coefficient of determination, R²: 1 is perfect, 0 as good as the mean of y."""
        predicted = self.predict(X).reshape(-1, self.support_.y.shape[1])
        y = as_targets(y, len(predicted))[0].numpy()
        weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        left = np.average((y - predicted) ** 2, axis=0, weights=weights)
        spread = np.average((y - np.average(y, axis=0, weights=weights)) ** 2, 0, weights)
        constant = spread == 0
        share = np.where(constant, left == 0, 1 - left / np.where(constant, 1, spread))
        return float(share.mean())

    def _fit(
        self,
        learner: Learner,
        reader: Reader,
        x: torch.Tensor,
        y: torch.Tensor,
        flat: bool,
    ) -> None:
        outputs = learner.outputs(x)
        if y.shape[1] != outputs:
            raise ValueError(
                f"y has {y.shape[1]} values a row, and this start gives {outputs}: give as many, "
                f"or choose a start that was trained for {y.shape[1]}"
            )
        support = Batch(x, y.to(x))
        self._keep(learner, reader, support, adapt(learner, support, self._how()))
        self.flat_ = flat
