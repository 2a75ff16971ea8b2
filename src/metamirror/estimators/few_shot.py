"""A classifier and a regressor that learn from a few examples, with scikit-learn's conventions."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators.base import FewShotEstimator, row_length
from metamirror.estimators.calibration import likeliest_temperature
from metamirror.estimators.comparison import Comparison, compare
from metamirror.estimators.fitting import Adapt
from metamirror.estimators.held_out import adapting, enough, held_out_logits
from metamirror.estimators.inputs.numbers import as_targets, check_flag
from metamirror.estimators.labels import FirstOutputs, as_labels, classes_of, own_loss
from metamirror.estimators.starts import Start


@dataclass(eq=False, repr=False)
class FewShotClassifier(FewShotEstimator):
    """Tells classes apart from a few examples of each, by adapting a meta-learned start.

    Examples are numpy arrays, torch tensors, lists of PIL images or of files; grey or colour, of
    any size, bytes or floats in [0, 1]. Labels are anything that can be hashed. There may be fewer
    classes than the start has outputs, or any number where its head is computed from the examples,
    as that of `protonet` is; and more examples of some than of others. Normalisation uses the
    statistics of these examples, so that a prediction depends on its image alone.

    Args:
        start: a shipped start's name, a run folder, a folder of `metamirror.save`, or a `Learner`.
            Without one, rows of numbers, such as the features of a frozen network, are told apart
            by ridge regression on their directions, for any number of classes; images are taken for
            drawn letters, by the start glyphs-blockiaf.
        backbone: a frozen network whose features are adapted to, in place of the examples: a
            module, a function from a list of examples to rows of numbers, FILE.onnx, FILE.pt2,
            timm:NAME, a run folder or a shipped start, or a `Backbone`.
        steps: inner steps, if other than the start's.
        lr: inner learning rate, if other than the start's.
        early_stopping: stop at a step that lowers the loss of the examples by less than `tol`,
            0.001, times its first value; a step that raises it is taken back.
        tol: that share.
        invert: exchange dark and light. The shipped starts know light ink on a dark ground.
        ink: look for what is drawn, dark on light or light on dark, and bring it to the size and
            place of a letter, as the playground does.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        random_state: seed of the method's own noise; most methods have none.
        calibrate: fit a temperature on held-out examples, where there are two of each class.

    Attributes:
        classes_: the labels, in order.
        losses_: the loss of the examples before each step and after the last.
        n_steps_: how many steps were made.
        adaptation_seconds_: how long they took.
        temperature_: what logits are divided by; 1 unless calibrated.
        held_out_accuracy_: the share of the examples that models of the others predict, where it
            was calibrated; else None.
        n_features_in_: the length of the rows, where X was a table.

    >>> import metamirror as mm
    >>> task = mm.tasks("glyphs", split="test", batch=1)[0]  # 5 new letters, one example of each
    >>> clf = mm.FewShotClassifier().fit(task.support.x[0], list("abcde"))
    >>> clf.predict_proba(task.query.x[0]).shape
    (75, 5)
    """

    _estimator_type = "classifier"

    _: KW_ONLY
    calibrate: bool = True

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Add examples to those there are, and adapt to all of them, again from the start.

        Args:
            X: more examples.
            y: a label for each; new classes may come.
            classes: all labels that may ever come, if others are to be refused.
        """
        if classes is not None:
            announced = as_labels(list(classes))
            if unknown := [label for label in as_labels(y) if label not in announced]:
                raise ValueError(f"y holds {unknown[0]!r}, which is not in classes: {announced!r}")
        return super().partial_fit(X, y)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest label of each example."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities (examples, classes), classes in the order of `classes_`."""
        logits = self._outputs(X)[:, : len(self.classes_)].double()
        return np.asarray((logits / self.temperature_).softmax(1))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of examples whose label is predicted."""
        predicted = self.predict(X).tolist()
        right = [p == t for p, t in zip(predicted, as_labels(y, len(predicted)), strict=True)]
        return float(np.average(right, weights=sample_weight))

    @torch.inference_mode(False)
    def compare(self, X: Any, y: Any) -> Comparison:
        """Compare this estimator with simpler ones on a user's own examples, and recommend one.

        The nearest class mean and logistic regression get the features before the start's head, or
        rows of numbers as they are. Examples are predicted in turn by models of the others, at
        least two of each class. It fits nothing that stays.

        Args:
            X: the examples.
            y: a label for each.
        """
        _, learner, _, x = self._opened(X)
        support, classes = self._labelled(learner, x, y, None)
        return compare(learner, support, classes, self._run(learner))

    def _usual_start(self, X: Any) -> Start:
        return "glyphs-blockiaf" if row_length(X) is None else super()._usual_start(X)

    def _support(
        self, learner: Learner, x: Tensor, y: Any, before: Batch | None, run: Adapt
    ) -> tuple[Batch, dict[str, Any]]:
        check_flag("calibrate", self.calibrate)
        support, classes = self._labelled(learner, x, y, before)
        facts = {"classes": classes, "temperature": 1.0}
        if self.calibrate and enough(support.y):
            logits, labels = held_out_logits(support, adapting(run)), support.y.cpu()
            facts["temperature"] = likeliest_temperature(logits, labels)
            facts["held_out_accuracy"] = float((logits.argmax(1) == labels).double().mean())
        return support, facts

    def _labelled(
        self, learner: Learner, x: Tensor, y: Any, before: Batch | None
    ) -> tuple[Batch, NDArray[Any]]:
        """Return examples with the numbers of their classes, earlier ones first, and the classes.

        The learner's loss is then that of these classes.
        """
        labels = as_labels(y, len(x))
        if before is not None:
            x = torch.cat([before.x, x])
            labels = [*self.classes_[before.y.cpu().numpy()].tolist(), *labels]
        any_number = learner.fits_any_outputs(self.steps)
        classes = classes_of(labels, None if any_number else learner.outputs(x))
        place = {label: i for i, label in enumerate(classes.tolist())}
        support = Batch(x, torch.tensor([place[label] for label in labels], device=x.device))
        learner.configure(loss=FirstOutputs(len(classes), own_loss(learner)))
        return support, classes


@dataclass(eq=False, repr=False)
class FewShotRegressor(FewShotEstimator):
    """Predicts quantities from a few examples, by adapting a meta-learned start.

    As `FewShotClassifier`, with numbers in place of labels: one for each example, or as many as
    the start's model has outputs.

    Args:
        start: a shipped start's name, a run folder, a folder of `metamirror.save`, or a `Learner`.
            Without one, ridge regression on rows of numbers.
        backbone: a frozen network whose features are adapted to, in place of the examples: a
            module, a function from a list of examples to rows of numbers, FILE.onnx, FILE.pt2,
            timm:NAME, a run folder or a shipped start, or a `Backbone`.
        steps: inner steps, if other than the start's.
        lr: inner learning rate, if other than the start's.
        early_stopping: stop at a step that lowers the loss of the examples by less than `tol`,
            0.001, times its first value; a step that raises it is taken back.
        tol: that share.
        invert: exchange dark and light, where examples are images.
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
    >>> curve = mm.FewShotRegressor("sinusoid-metasgd").fit(task.support.x[0], task.support.y[0])
    >>> curve.predict(task.query.x[0]).shape
    (15, 1)
    """

    _estimator_type = "regressor"

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the values of each example; one axis where `fit` was given one."""
        found = np.asarray(self._outputs(X).double())
        return found[:, 0] if self.fitted_.flat else found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, R²: 1 is perfect, 0 as good as y's mean."""
        predicted = self.predict(X).reshape(-1, self.support_.y.shape[1])
        y = as_targets(y, len(predicted))[0].numpy()
        weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        left = np.average((y - predicted) ** 2, axis=0, weights=weights)
        spread = np.average((y - np.average(y, axis=0, weights=weights)) ** 2, 0, weights)
        constant = spread == 0
        share = np.where(constant, left == 0, 1 - left / np.where(constant, 1, spread))
        return float(share.mean())

    def _support(
        self, learner: Learner, x: Tensor, y: Any, before: Batch | None, run: Adapt
    ) -> tuple[Batch, dict[str, Any]]:
        targets, flat = as_targets(y, len(x))
        outputs = learner.outputs(x)
        if targets.shape[1] != outputs and not learner.fits_any_outputs(self.steps):
            raise ValueError(
                f"y has {targets.shape[1]} values a row, and this start gives {outputs}: give as "
                f"many, or choose a start that was trained for {targets.shape[1]}"
            )
        support = Batch(x, targets.to(x))
        if before is not None:
            support = Batch(*(torch.cat(pair) for pair in zip(before, support, strict=True)))
        return support, {"flat": flat}
