"""The one inner loop. Every method of this library runs through `descend`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from metamirror.geometry import Geometry, State
from metamirror.types import Params

Order = Literal["second", "first", "none"]
"""How much of an inner step the outer level differentiates: all, all but the gradient, nothing."""

LowerLevel = Callable[[Params], tuple[Tensor, Tensor]]
"""phi -> (what is descended: loss plus prior, the loss alone)."""


@dataclass(frozen=True)
class Path:
    """What an adaptation went through.

    `losses[k]` and `grad_norms[k]` belong to the point before step k+1, k = 0..K-1. `states` and
    `points` (the same in primal variables) run from 0 to K where they were kept, and hold only
    the last entry otherwise.
    """

    losses: Tensor
    grad_norms: Tensor
    states: tuple[State, ...]
    points: tuple[Params, ...]

    @property
    def phi(self) -> Params:
        """The adapted parameters, phi^(K)."""
        return self.points[-1]


def descend(
    lower: LowerLevel,
    geometry: Geometry,
    state: State,
    *,
    steps: int,
    lr: float,
    order: Order = "second",
    inside_vmap: bool = False,
    keep: bool = False,
) -> Path:
    """K steps of z <- z - alpha * direction(grad L(primal(z))).

    Args:
        lower: what the inner level minimises.
        geometry: how a gradient becomes an update.
        state: where to start, from `geometry.begin`.
        steps: K.
        lr: alpha.
        order: "second" keeps the whole graph; "first" treats each gradient as a constant;
            "none" keeps no graph at all, so that memory does not grow with K.
        inside_vmap: differentiate with `torch.func`, the only way under `torch.func.vmap`.
        keep: keep every state and point, not only the last.
    """
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    states: list[State] = []
    points: list[Params] = []
    with torch.set_grad_enabled(order != "none"):
        phi = geometry.primal(state)
        for _ in range(steps):
            if keep:
                states.append(state)
                points.append(phi)
            loss, grad = _loss_and_gradient(lower, phi, order, inside_vmap)
            losses.append(loss.detach())
            norms.append(global_norm(grad))
            state = geometry.step(state, grad, lr)
            phi = geometry.primal(state)
    states.append(state)
    points.append(phi)
    empty = next(iter(phi.values())).new_zeros(0)
    return Path(
        losses=torch.stack(losses) if losses else empty,
        grad_norms=torch.stack(norms) if norms else empty,
        states=tuple(states),
        points=tuple(points),
    )


def _loss_and_gradient(
    lower: LowerLevel, phi: Params, order: Order, inside_vmap: bool
) -> tuple[Tensor, Params]:
    if inside_vmap:
        grad, (_, loss) = torch.func.grad_and_value(lower, has_aux=True)(phi)
        return loss, grad if order == "second" else {n: g.detach() for n, g in grad.items()}
    # At second order phi may carry a graph, and the gradient must stay connected to it; in every
    # other case a fresh leaf lets each step's graph be freed at once.
    phi = {
        name: p if order == "second" and p.requires_grad else p.detach().requires_grad_()
        for name, p in phi.items()
    }
    with torch.enable_grad():
        total, loss = lower(phi)
        grads = torch.autograd.grad(
            total,
            tuple(phi.values()),
            create_graph=order == "second",
            materialize_grads=True,
        )
    return loss, dict(zip(phi, grads, strict=True))


def global_norm(tensors: Params) -> Tensor:
    """The Euclidean norm of all tensors taken as one vector, outside the graph."""
    return torch.stack([t.detach().square().sum() for t in tensors.values()]).sum().sqrt()
