"""The meta-gradient of one outer step, computed by all ranks together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.data import TaskStream
from metamirror.parallel.task_pool import TaskPool
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.device import place
from metamirror.training.distributed import ALONE, Ranks
from metamirror.training.divergence import NonFiniteError
from metamirror.training.optimizer import descend

NotDecomposable: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
"""What torch raises for the eigenvalues of a matrix that is not finite."""


@dataclass(frozen=True)
class MetaGradient:
    """The meta-gradient of one outer step, the same on every rank."""

    flat: Tensor  # the gradient of the mean loss, all parameters in one vector.
    loss: float  # the mean over the tasks of the step.
    accuracy: float  # the same, in percent; NaN for regression.
    stop: bool  # whether some rank was asked to stop.
    own: dict[int, float]  # the losses of this rank's own tasks, by index.

    @property
    def finite(self) -> bool:
        """Whether it can be used."""
        return math.isfinite(self.loss) and bool(torch.isfinite(self.flat).all())


def meta_gradient(
    learner: Learner,
    parameters: Sequence[Tensor],
    stream: TaskStream,
    step: int,
    ranks: Ranks,
    *,
    stop: bool = False,
    pool: TaskPool | None = None,
) -> MetaGradient:
    """Differentiate the loss of this rank's tasks, and all-reduce over the ranks."""
    indices = ranks.share(stream.batch)
    size = sum(p.numel() for p in parameters)
    flat = parameters[0].new_zeros(size + 3)
    flat[-1] = float(stop)
    own: dict[int, float] = {}
    if indices:
        try:
            losses, accuracies, grads = _differentiated(
                learner, parameters, stream, step, indices, pool
            )
            flat[:size] = torch.cat([g.flatten() for g in grads])
            flat[size] = losses.sum() / stream.batch
            flat[size + 1] = accuracies.sum() / stream.batch
            own = dict(zip(indices, losses.tolist(), strict=True))
        except NotDecomposable:
            # An eigenvalue of what is not finite: the other ranks must hear of it too.
            flat[:-1] = float("nan")
    ranks.all_reduce(flat)
    loss, accuracy, stopping = flat[size:].tolist()
    return MetaGradient(flat[:size], loss, 100 * accuracy, stopping > 0, own)


def _differentiated(
    learner: Learner,
    parameters: Sequence[Tensor],
    stream: TaskStream,
    step: int,
    indices: Sequence[int],
    pool: TaskPool | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return losses and accuracies of some tasks of a step, and their part of the meta-gradient."""
    tasks = place(stream.stack(step, indices), learner)
    every = stream.seeds(step)
    (losses, accuracies), grads = learner.meta_gradient(
        tasks, parameters, seeds=[every[i] for i in indices], pool=pool
    )
    # The mean over the tasks of the step, wherever they are: a rank's own mean would weigh the
    # tasks of a smaller share more.
    share = len(indices) / stream.batch
    return losses, accuracies, [share * grad for grad in grads]


def blame(
    learner: Learner,
    parameters: Sequence[Tensor],
    stream: TaskStream,
    step: int,
    ranks: Ranks,
    own: dict[int, float],
) -> dict[int, str]:
    """Return which tasks of a step are not finite, and what of them; the same on every rank."""
    kinds = ("", "meta-loss", "meta-gradient")
    codes = torch.zeros(stream.batch, device=ranks.device)
    for index in ranks.share(stream.batch):
        codes[index] = 1
        if not math.isfinite(own.get(index, 0.0)):
            continue
        try:
            losses, _, grads = _differentiated(learner, parameters, stream, step, [index])
        except NotDecomposable:
            continue
        if torch.isfinite(losses).all():
            codes[index] = 0 if all(torch.isfinite(g).all() for g in grads) else 2
    found = ranks.all_reduce(codes).int().tolist()
    return {index: kinds[code] for index, code in enumerate(found) if code}


def outer_step(
    learner: Learner, optimizer: torch.optim.Optimizer, stream: TaskStream, step: int
) -> float:
    """Take one outer step with an optimiser of one's own; return the meta-loss."""
    parameters = parameters_of(optimizer)
    ranks = replace(ALONE, device=parameters[0].device)
    gradient = meta_gradient(learner, parameters, stream, step, ranks)
    if not gradient.finite:
        raise NonFiniteError(
            f"the meta-loss or its gradient is not finite at step {step}: lower lr ({learner.lr}) "
            f"or the outer learning rate"
        )
    descend(optimizer, gradient.flat, 1.0)
    return gradient.loss
