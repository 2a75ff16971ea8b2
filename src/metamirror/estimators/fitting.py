"""From a start and a handful of examples to an adapted model, and what happened on the way."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from numbers import Real

import torch

from metamirror.core.learner import Adapted, Learner
from metamirror.core.tasks import Batch, loss_for
from metamirror.estimators.sklearn_api import check_flag


@dataclass(frozen=True)
class Adaptation:
    """How to adapt.

    Attributes:
        steps: K; None for the learner's.
        lr: alpha; None for the learner's.
        early_stopping: whether to stop at a step that lowers the support loss by less than `tol`
            times its first value. A step that raises it is taken back.
        tol: that share.
        seed: of the method's own noise.
    """

    steps: int | None
    lr: float | None
    early_stopping: bool
    tol: float
    seed: int | None

    def __post_init__(self) -> None:
        check_flag("early_stopping", self.early_stopping)
        number = isinstance(self.tol, Real) and not isinstance(self.tol, bool)
        if not number or not 0 <= self.tol < 1:
            raise ValueError(f"tol is {self.tol!r}; a share of the loss, at least 0 and below 1")


@dataclass(frozen=True)
class Outcome:
    """An adapted model, the support loss before each step and after the last, and the time."""

    adapted: Adapted
    losses: list[float]
    seconds: float


def adapt(learner: Learner, support: Batch, how: Adaptation) -> Outcome:
    """Adapts, and refuses to hand out a model that is not finite."""
    begun = time.perf_counter()
    if how.early_stopping:
        adapted, losses = _until_it_stops_falling(learner, support, how)
    else:
        adapted = learner.adapt(support, steps=how.steps, lr=how.lr, seed=how.seed)
        losses = [*adapted.path.losses.tolist(), support_loss(learner, adapted, support)]
    seconds = time.perf_counter() - begun
    finite = all(bool(torch.isfinite(p).all()) for p in adapted.params.values())
    if not (finite and all(map(math.isfinite, losses))):
        lr = learner.lr if how.lr is None else how.lr
        raise ValueError(
            f"adaptation left the finite numbers (support losses "
            f"{', '.join(f'{loss:.4g}' for loss in losses)}): lower lr, which is {lr:g}"
        )
    return Outcome(adapted, losses, seconds)


def _until_it_stops_falling(
    learner: Learner, support: Batch, how: Adaptation
) -> tuple[Adapted, list[float]]:
    losses: list[float] = []
    path = learner.adaptations(support, steps=how.steps, lr=how.lr, seed=how.seed)
    best = next(path)
    losses.append(support_loss(learner, best, support))
    for adapted in path:
        loss = support_loss(learner, adapted, support)
        if not loss <= losses[-1]:
            break
        best = adapted
        losses.append(loss)
        if losses[-2] - loss < how.tol * losses[0]:
            break
    return best, losses


def support_loss(learner: Learner, adapted: Adapted, support: Batch) -> float:
    """The support loss of an adapted model: its statistics are those of this very batch."""
    loss = learner.loss or loss_for(support.y)
    with torch.no_grad():
        return float(loss(adapted(support.x), support.y))
