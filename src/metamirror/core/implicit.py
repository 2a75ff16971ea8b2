r"""The derivative of a minimiser, from the point alone and not from the path that led there.

Where $\phi^*$ minimises $L(\phi) + R(\phi; \phi^{(0)})$, the gradient of the sum is zero, and stays
so when something else changes: $\phi^{(0)}$, or a meta-learned tensor $\psi$ of the prior or the
model. By the implicit function theorem a cotangent q of $\phi^*$ is pulled back to

$$-\Big(\frac{\partial^2 (L + R)}{\partial(\phi^{(0)}, \psi)\,\partial\phi}\Big)^\top w,
  \qquad (R_{\phi\phi} + H_L)\, w = q,$$

with $H_L$ the Hessian of L. Nothing but Hessian-vector products is needed. With a damping d all of
this is said of L / (1 + d) in place of L.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from metamirror.core.lower_level import LowerLevel
from metamirror.core.outside_vmap import outside_vmap
from metamirror.core.tasks import Params
from metamirror.core.trees import pulled_back

Vector = list[Tensor]
"""Tensors with a leading axis of tasks, each of which has a system of its own."""


@dataclass(frozen=True)
class Minimiser:
    """A point that is taken for the minimiser, and how its derivative is computed.

    Attributes:
        lower: loss and prior of the task.
        cg: the number of conjugate-gradient steps.
        damping: (1 + damping) divides the loss, whose minimiser with the prior is differentiated.
        replay: takes the last steps again, from a constant state, with a graph that reaches the
            geometry's parameters; None if these are to have no gradient.
        geometry: those parameters.
        stacked: the task's own tensors where it is one of a stack under `torch.func.vmap`.
    """

    lower: LowerLevel
    cg: int
    damping: float
    replay: Callable[[], Params] | None = None
    geometry: Sequence[Tensor] = ()
    stacked: Sequence[Tensor] = ()

    def attached(self, phi: Params, phi0: Params, through: Sequence[Tensor]) -> Params:
        """Return phi with a graph that reaches phi0 and the meta-learned tensors `through`."""
        points = (*phi.values(), *phi0.values())

        def of_all(size: int, axes: Sequence[int | None], given: Sequence[Tensor]) -> Any:
            every = (
                p.expand(size, *p.shape) if axis is None else p.movedim(axis, 0)
                for p, axis in zip(given[: len(points)], axes, strict=False)
            )
            found = _Attached.apply(self, tuple(phi), tuple(phi0), *every, *through)  # type: ignore[no-untyped-call]
            return found, (0,) * len(found)

        if self.stacked:
            found = outside_vmap(of_all, *points, *self.stacked)
        else:
            found = [p[0] for p in of_all(1, [None] * len(points), points)[0]]
        return dict(zip(phi, found, strict=True))

    def gradients(self, phi: Params, phi0: Params) -> tuple[Vector, Vector]:
        """Return the gradients by phi of what is differentiated and of the prior, with graphs."""
        prior = self.of_each(self.lower.penalty)(phi, phi0)
        both = self.of_each(self.lower.loss)(phi) / (1 + self.damping) + prior
        of_both, of_prior = (
            # Each task's value depends on its own phi alone.
            torch.autograd.grad(
                value.sum(), tuple(phi.values()), create_graph=True, materialize_grads=True
            )
            for value in (both, prior)
        )
        return list(of_both), list(of_prior)

    def of_each(self, value: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of one task's points as one of the points of all tasks."""
        if self.stacked:
            return torch.func.vmap(value, randomness="different")

        def of_one(*points: Params) -> Tensor:
            return value(*({n: p[0] for n, p in point.items()} for point in points)).unsqueeze(0)

        return of_one

    def pull_back(
        self,
        of_both: Vector,
        of_prior: Vector,
        x: Vector,
        by: Sequence[Tensor],
        q: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Return the gradients by some tensors, from the cotangent q of the point x."""

        def hessian(gradient: Sequence[Tensor], vector: Vector) -> Vector:
            found = pulled_back(gradient, vector, x, keep_graph=True)
            return [torch.zeros_like(p) if h is None else h for h, p in zip(found, x, strict=True)]

        # The Hessian of each of our priors is diagonal: this is its diagonal.
        scale = hessian(of_prior, [torch.ones_like(p) for p in x])
        w = conjugate_gradients(partial(hessian, of_both), list(q), self.cg, scale)
        return pulled_back(of_both, [-each for each in w], by, keep_graph=True)

    def replayed(self, q: Sequence[Tensor]) -> dict[int, Tensor | None]:
        """Return the gradients of the geometry's parameters, by their identity."""
        if self.replay is None or not self.geometry:
            return {}
        own = [each[0] for each in q]
        unrolled = pulled_back(list(self.replay().values()), own, self.geometry)
        return {id(p): grad for p, grad in zip(self.geometry, unrolled, strict=True)}


class _Attached(Function):
    @staticmethod
    def forward(
        ctx: Any, minimiser: Minimiser, names: Any, names0: Any, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(names) + len(names0)
        if any(ctx.needs_input_grad):
            # Now: what a stack of tasks shares with the rest of vmap ends with it.
            with torch.enable_grad():
                points = [t.detach().requires_grad_() for t in tensors[:count]]
                phi = dict(zip(names, points, strict=False))
                phi0 = dict(zip(names0, points[len(phi) :], strict=True))
                ctx.gradients = minimiser.gradients(phi, phi0)
            ctx.minimiser, ctx.phi, ctx.phi0 = minimiser, phi, phi0
            ctx.through = tensors[count:]
        return tuple(t.detach() for t in tensors[: len(names)])

    @staticmethod
    def backward(ctx: Any, *q: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the meta-gradient of the implicit adjoint cannot be differentiated again: choose "
                "the adjoint unrolled"
            )
        learned = [t for t in ctx.through if t.requires_grad]
        starts = list(ctx.phi0.values())
        with torch.enable_grad():
            found = ctx.minimiser.pull_back(
                *ctx.gradients, list(ctx.phi.values()), [*starts, *learned], q
            )
            replayed = ctx.minimiser.replayed(q)
        grads = zip(learned, found[len(starts) :], strict=True)
        by_learned = {id(t): grad for t, grad in grads} | replayed
        rest = [by_learned.get(id(t)) for t in ctx.through]
        return None, None, None, *[None] * len(ctx.phi), *found[: len(starts)], *rest


def conjugate_gradients(
    product: Callable[[Vector], Vector], b: Vector, steps: int, scale: Vector
) -> Vector:
    """Return x with A x = b, nearly, by so many steps of preconditioned conjugate gradients.

    `product` multiplies with the symmetric A of each task, and `scale` is a rough diagonal of it.
    Where A turns out not to be positive along a direction, as at a point that is no minimum, x
    stays as it is: it is finite, whatever A.

    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> ones = [torch.ones(1, 2)]
    >>> x = conjugate_gradients(lambda v: [v[0] @ A], ones, 2, ones)
    >>> torch.allclose(x[0] @ A, ones[0])
    True
    """
    # No value is looked at: the work is the same for all, and runs on every device.
    scale = [torch.where(s > 0, s, 1) for s in scale]
    x, r = [torch.zeros_like(each) for each in b], list(b)
    y = [each / s for each, s in zip(r, scale, strict=True)]
    p, size = y, dot(r, y)
    going = size > 0
    for _ in range(steps):
        along = product(p)
        curvature = dot(p, along)
        # Less is what rounding leaves of zero: a step along p would have any length.
        least = torch.finfo(curvature.dtype).eps * dot(p, list(map(torch.mul, scale, p)))
        going = going & (curvature > least)
        length = torch.where(going, size / curvature, 0)
        x = [each + times(length, d) for each, d in zip(x, p, strict=True)]
        r = [each - times(length, d) for each, d in zip(r, along, strict=True)]
        y = [each / s for each, s in zip(r, scale, strict=True)]
        before, size = size, dot(r, y)
        going = going & (size > 0)
        turn = torch.where(going, size / before, 0)
        p = [each + times(turn, d) for each, d in zip(y, p, strict=True)]
    return x


def dot(a: Vector, b: Vector) -> Tensor:
    """Return each task's inner product of two lists of tensors."""
    return torch.stack([(x * y).reshape(len(x), -1).sum(1) for x, y in zip(a, b, strict=True)]).sum(
        0
    )


def times(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor with each task's part multiplied by its number."""
    return numbers.view(-1, *[1] * (tensor.dim() - 1)) * tensor
