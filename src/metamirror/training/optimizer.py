"""The optimiser of the outer level, its learning rates, and one step along a flat gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metamirror.core.geometry import Inserted
from metamirror.core.learner import Learner
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.config import RunConfig


def build_optimizer(config: RunConfig, learner: Learner) -> torch.optim.Optimizer:
    """Return Adam or SGD over two groups: the start, which is the model's own, and the geometry."""
    inserted = [m for m in learner.model.modules() if isinstance(m, Inserted)]
    apart = {id(p) for module in inserted for p in module.parameters()}
    start = [p for p in learner.model.parameters() if p.requires_grad and id(p) not in apart]
    known = {id(p) for p in start}
    rest = [p for p in learner.parameters() if p.requires_grad and id(p) not in known]
    if config.geometry_lr is not None and not rest:
        raise ValueError(
            f"geometry_lr is {config.geometry_lr}, but {config.method} learns nothing beside its "
            f"start: leave it out"
        )
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
        grad = part.view_as(p)
        # Fused optimisers walk memory: a gradient must have the strides of its parameter.
        p.grad = grad if p.is_contiguous() else torch.empty_like(p).copy_(grad)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
