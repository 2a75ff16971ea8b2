"""The one inner loop. Every method of this library runs through `descend`."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from metamirror.core.adjoints import Adjoint, Replay, Unrolled
from metamirror.core.geometry import Geometry, State
from metamirror.core.grad_mode import check_mode
from metamirror.core.lower_level import Lower, loss_and_gradient
from metamirror.core.outside_vmap import outside_vmap
from metamirror.core.tasks import Params
from metamirror.core.trees import tensors_in, with_tensors


@dataclass(frozen=True)
class Path:
    """The points that an adaptation visited, with support losses and gradient norms.

    `losses[k]` and `grad_norms[k]` belong to the point before step k+1, k = 0..K-1. `states` and
    `points` (the same in primal variables, with what the geometry gives beside them, to the last
    one what it gave to step K) run from 0 to K where they were kept, and hold only the last entry
    otherwise.
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
    lower: Lower,
    geometry: Geometry[Any],
    state: State,
    *,
    steps: int,
    lr: float,
    adjoint: Adjoint = Unrolled(),  # noqa: B008 - frozen
    keep: bool = False,
    phi0: Params | None = None,
    through: Sequence[Tensor] = (),
    first: int = 0,
    stacked: Sequence[Tensor] = (),
    renew: Callable[[], State] | None = None,
) -> Path:
    """Take K = `steps` steps of z <- z - alpha * direction(grad L(primal(z))), alpha = `lr`.

    `state` is where to start, from `geometry.begin`, and `first` how many steps were taken before.
    `keep` keeps every state and point, not only the last. `phi0` is the prior's centre, where there
    is a prior, and `through` has the meta-learned tensors that a step may use. `stacked` has the
    task's own tensors where it is one of a stack under `torch.func.vmap`. `renew` returns the first
    state again, with a graph that reaches the geometry's parameters alone. Where gradients are
    switched off there is no graph, whatever the adjoint.
    """
    check_mode()
    if adjoint.attaches and steps == 0:
        # Nothing was minimised: phi^(0) is what the start made it.
        adjoint = Unrolled()
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    visited: list[tuple[State, Params]] = []

    def step(state: State, phi0: Params, k: int) -> tuple[State, Params, Tensor, Tensor]:
        phi, given = geometry.primal(state), _given(geometry, state, adjoint)

        def level(phi: Params, phi0: Params) -> tuple[Tensor, Tensor]:
            return lower({**given, **phi}, phi0)

        loss, grad = _loss_and_gradient(level, phi, phi0, adjoint, stacked)
        norm = geometry.gradient_norm(state, grad)
        after = geometry.step(state, grad, lr=lr, loss=loss, k=k)
        return after, {**given, **phi}, loss.detach(), norm

    begun = before = state
    tail: deque[State] = deque(maxlen=adjoint.last)
    with torch.set_grad_enabled(adjoint.builds_graph and torch.is_grad_enabled()):
        for k in range(first, first + steps):
            after, phi, loss, norm = adjoint.step(step, state, phi0 or {}, k, through=through)
            losses.append(loss)
            norms.append(norm)
            if keep:
                visited.append((state, phi))
            tail.append(state)
            before, state = state, after
        # What the last step was taken with, the last point is used with.
        phi, given = geometry.primal(state), _given(geometry, before, adjoint)
    if adjoint.attaches:
        centre = geometry.primal(begun) if phi0 is None else phi0

        def replay() -> Params:
            """Take the last steps again, with a graph that reaches the geometry alone."""
            assert renew is not None
            point, constant = renewed(tail[0], begun, renew()), detached(centre)
            count = len(tail)
            since = first + steps - count
            again = descend(lower, geometry, point, steps=count, lr=lr, phi0=constant, first=since)
            return {name: again.phi[name] for name in centre}

        known = {id(p) for p in geometry.parameters()}
        own = [p for p in through if id(p) in known]
        run = replay if tail and renew is not None else None
        around = _around(lower, given)
        phi = adjoint.attach(phi, centre, around, Replay(through, own, run, stacked))
    visited.append((state, {**given, **phi}))
    empty = next(iter(phi.values())).new_zeros(0)
    return Path(
        losses=torch.stack(losses) if losses else empty,
        grad_norms=torch.stack(norms) if norms else empty,
        states=tuple(state for state, _ in visited),
        points=tuple(phi for _, phi in visited),
    )


def _around(lower: Any, given: Params) -> Any:
    """Return the lower level with some parameters fixed at given values."""
    if not given:
        return lower
    return replace(lower, predict=lambda phi, x: lower.predict({**given, **phi}, x))


def _given(geometry: Geometry[Any], state: State, adjoint: Adjoint) -> Params:
    found = geometry.given(state)
    # Outside the graph as copies: the learner's own go on learning.
    return found if adjoint.builds_graph else {n: p.detach().clone() for n, p in found.items()}


def renewed(state: State, begun: State, fresh: State) -> State:
    """Return the state with what it has kept since it began taken from a fresh beginning.

    What the steps have changed is a constant.
    """
    pairs = zip(tensors_in(state), tensors_in(begun), tensors_in(fresh), strict=True)
    found: State = with_tensors(state, [f if now is b else now.detach() for now, b, f in pairs])
    return found


def detached(params: Params) -> Params:
    """Return the parameters outside the graph."""
    return {name: p.detach() for name, p in params.items()}


def _loss_and_gradient(
    lower: Lower, phi: Params, phi0: Params, adjoint: Adjoint, stacked: Sequence[Tensor] = ()
) -> tuple[Tensor, Params]:
    if stacked:
        return _of_stack(lower, phi, phi0, adjoint, stacked)
    # At second order phi may carry a graph, and the gradient must stay connected to it; in every
    # other case, and where the graph is recomputed later, a fresh leaf lets each step's graph be
    # freed at once.
    second = adjoint.second_order and torch.is_grad_enabled()
    phi = {
        name: p if second and p.requires_grad else p.detach().requires_grad_()
        for name, p in phi.items()
    }
    loss, grad = loss_and_gradient(lower, phi, phi0, create_graph=second)
    return loss if second else loss.detach(), grad


def _of_stack(
    lower: Lower, phi: Params, phi0: Params, adjoint: Adjoint, stacked: Sequence[Tensor]
) -> tuple[Tensor, Params]:
    """Return loss and gradient of one task under vmap, from those of all tasks outside it.

    The gradient of the sum of all losses by every task's own phi is each task's gradient.
    """

    def of_all(size: int, axes: Sequence[int | None], given: Sequence[Tensor]) -> Any:
        each = (
            p.expand(size, *p.shape) if axis is None else p.movedim(axis, 0)
            for p, axis in zip(given[: len(phi)], axes, strict=False)
        )

        def total(phi: Params, phi0: Params) -> tuple[Tensor, Tensor]:
            minimised, loss = torch.func.vmap(lambda phi: lower(phi, phi0), randomness="different")(
                phi
            )
            return minimised.sum(), loss

        loss, grad = _loss_and_gradient(total, dict(zip(phi, each, strict=True)), phi0, adjoint)
        return (loss, *grad.values()), (0,) * (1 + len(grad))

    loss, *grad = outside_vmap(of_all, *phi.values(), *stacked)
    return loss, dict(zip(phi, grad, strict=True))
