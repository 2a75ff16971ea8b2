"""A few-shot regressor with scikit-learn's conventions: fit on a few examples, predict, save."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators.base import FewShotEstimator
from metamirror.estimators.fitting import Adapt
from metamirror.estimators.inputs.numbers import as_targets
from metamirror.estimators.starts import Start


@dataclass(eq=False, repr=False)
class FewShotRegressor(FewShotEstimator):
    """Predicts quantities from a few examples, by adapting a meta-learned start.

    As `FewShotClassifier`, with numbers in place of labels: one for each example, or as many as
    the start's model has outputs.

    Args:
        start: a shipped start's name, a run folder, a folder of `metamirror.save`, or a `Learner`.
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
    >>> curve = mm.FewShotRegressor().fit(task.support.x[0], task.support.y[0])
    >>> curve.predict(task.query.x[0]).shape
    (15, 1)
    """

    _estimator_type: ClassVar[Literal["classifier", "regressor"]] = "regressor"

    start: Start = "sinusoid-metasgd"

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the values of each example; one axis where `fit` was given one."""
        found: NDArray[np.float64] = self._outputs(X).double().numpy()
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
        if targets.shape[1] != outputs:
            raise ValueError(
                f"y has {targets.shape[1]} values a row, and this start gives {outputs}: give as "
                f"many, or choose a start that was trained for {targets.shape[1]}"
            )
        support = Batch(x, targets.to(x))
        if before is not None:
            support = Batch(*(torch.cat(pair) for pair in zip(before, support, strict=True)))
        return support, {"flat": flat}
