"""An outer step: the meta-gradient, computed by all ranks together, and the optimiser's step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metamirror.core.geometry import Inserted
from metamirror.core.learner import Learner, like_layout
from metamirror.data import TaskStream
from metamirror.parallel.task_pool import TaskPool
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.config import RunConfig
from metamirror.training.device import place
from metamirror.training.distributed import Ranks


@dataclass(frozen=True)
class OuterGradient:
    """The gradient of one outer step, the same on every rank."""

    flat: Tensor  # the gradient of the mean loss, all parameters in one vector.
    loss: float  # the mean over the tasks, or labelled examples, of the step.
    score: float  # the same of the metric; NaN where there is none.
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
) -> OuterGradient:
    """Differentiate the loss of this rank's tasks, and all-reduce over the ranks."""
    indices = ranks.share(stream.batch)
    flat, own = _part(learner, parameters, stream, step, indices, pool)
    flat[-1] = float(stop)
    ranks.all_reduce(flat)
    loss, score, stopping = flat[-3:].tolist()
    return OuterGradient(flat[:-3], loss, score, stopping > 0, own)


def _part(
    learner: Learner,
    parameters: Sequence[Tensor],
    stream: TaskStream,
    step: int,
    indices: Sequence[int],
    pool: TaskPool | None = None,
) -> tuple[Tensor, dict[int, float]]:
    """Return what some tasks of a step add to the meta-gradient, and the loss of each.

    Behind the gradient are their parts of the mean loss and score, and a free place.
    """
    flat = parameters[0].new_zeros(sum(p.numel() for p in parameters) + 3)
    if not indices:
        return flat, {}
    tasks, every = place(stream.stack(step, indices), learner), stream.seeds(step)
    try:
        (losses, scores), grads = learner.meta_gradient(
            tasks, parameters, seeds=[every[i] for i in indices], pool=pool
        )
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # An eigenvalue of what is not finite: the other ranks must hear of it too.
        return flat.fill_(math.nan), {}
    # The mean over the tasks of the step, wherever they are: a rank's own mean would weigh the
    # tasks of a smaller share more.
    share = len(indices) / stream.batch
    flat[:-3] = torch.cat([share * grad.flatten() for grad in grads])
    flat[-3], flat[-2] = losses.sum() / stream.batch, scores.sum() / stream.batch
    return flat, dict(zip(indices, losses.tolist(), strict=True))


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
        if math.isfinite(own.get(index, 0.0)):
            flat, _ = _part(learner, parameters, stream, step, [index])
            if torch.isfinite(flat[-3]):
                codes[index] = 0 if torch.isfinite(flat[:-3]).all() else 2
    found = ranks.all_reduce(codes).int().tolist()
    return {index: kinds[code] for index, code in enumerate(found) if code}


def build_optimizer(
    config: RunConfig, learner: Learner, beside: nn.Module | None = None
) -> torch.optim.Optimizer:
    """Return Adam or SGD over two groups: the start, which is the model's own, and the geometry.

    What is trained `beside` the learner belongs to the second.
    """
    modules = learner.model.modules()
    apart = {id(p) for m in modules if isinstance(m, Inserted) for p in m.parameters()}
    start = [p for p in learner.model.parameters() if p.requires_grad and id(p) not in apart]
    known = {id(p) for p in start}
    rest = [p for p in learner.parameters() if p.requires_grad and id(p) not in known]
    if config.geometry_lr is not None and not rest:
        raise ValueError(
            f"geometry_lr is {config.geometry_lr}, but {config.method} has no geometry "
            f"parameters: leave it out"
        )
    rest += [] if beside is None else beside.parameters()
    rate = config.outer_lr if config.geometry_lr is None else config.geometry_lr
    groups = [
        {"params": params, "lr": lr, "full_lr": lr}
        for params, lr in ((start, config.outer_lr), (rest, rate))
        if params
    ]
    if config.optimizer == "adam":
        # One pass over memory for each tensor, in place of a dozen.
        return torch.optim.Adam(groups, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        groups,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
    )


def decay(config: RunConfig, step: int) -> float:
    """Return the factor of the learning rates: a function of the step, so that nothing is kept."""
    if config.schedule == "step":
        return float(config.decay_factor ** (step // config.decay_every))
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / config.iterations))
    return 1.0


def clip(flat: Tensor, config: RunConfig) -> None:
    """Limit the meta-gradient, in place: entry by entry, then as a whole."""
    if config.clip_value is not None:
        flat.clamp_(-config.clip_value, config.clip_value)
    if config.clip_norm is not None:
        flat.mul_(torch.clamp(config.clip_norm / (flat.norm() + 1e-12), max=1.0))


def descend(optimizer: torch.optim.Optimizer, flat: Tensor, factor: float) -> None:
    """Take one step along a flat gradient, with the learning rates times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("full_lr", group["lr"]) * factor
    parameters = parameters_of(optimizer)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = like_layout(part.view_as(p), p)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
