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
from metamirror.core.tasks import Params
from metamirror.core.trees import pulled_back

Vector = list[Tensor]


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
    """

    lower: LowerLevel
    cg: int
    damping: float
    replay: Callable[[], Params] | None = None
    geometry: Sequence[Tensor] = ()

    def attached(self, phi: Params, phi0: Params, through: Sequence[Tensor]) -> Params:
        """Return phi with a graph that reaches phi0 and the meta-learned tensors `through`."""
        tensors = (*phi.values(), *phi0.values(), *through)
        found = _Attached.apply(self, tuple(phi), tuple(phi0), *tensors)  # type: ignore[no-untyped-call]
        return dict(zip(phi, found, strict=True))

    def pull_back(
        self, phi: Params, phi0: Params, through: Sequence[Tensor], q: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients by phi0 and `through`, from the cotangent q of phi."""
        x = list(phi.values())
        prior = self.lower.penalty(phi, phi0)
        of_both, of_prior = (
            torch.autograd.grad(value, x, create_graph=True, materialize_grads=True)
            for value in (self.lower.loss(phi) / (1 + self.damping) + prior, prior)
        )

        def hessian(gradient: Sequence[Tensor], vector: Vector) -> Vector:
            found = pulled_back(gradient, vector, x, keep_graph=True)
            return [torch.zeros_like(p) if h is None else h for h, p in zip(found, x, strict=True)]

        # The Hessian of each of our priors is diagonal: this is its diagonal.
        scale = hessian(of_prior, [torch.ones_like(p) for p in x])
        w = conjugate_gradients(partial(hessian, of_both), list(q), self.cg, scale)
        found = pulled_back(of_both, [-each for each in w], [*phi0.values(), *through])
        if self.replay is not None and self.geometry:
            unrolled = pulled_back(list(self.replay().values()), q, self.geometry)
            place = {id(p): len(phi0) + i for i, p in enumerate(through)}
            for p, grad in zip(self.geometry, unrolled, strict=True):
                found[place[id(p)]] = grad
        return found


class _Attached(Function):
    @staticmethod
    def forward(
        ctx: Any, minimiser: Minimiser, names: Any, names0: Any, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.minimiser, ctx.names, ctx.names0 = minimiser, names, names0
        count = len(names) + len(names0)
        ctx.save_for_backward(*tensors[:count])
        ctx.through = tensors[count:]
        return tuple(t.detach() for t in tensors[: len(names)])

    @staticmethod
    def backward(ctx: Any, *q: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the meta-gradient of the implicit adjoint cannot be differentiated again: choose "
                "the adjoint unrolled"
            )
        own = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        phi = dict(zip(ctx.names, own, strict=False))
        phi0 = dict(zip(ctx.names0, own[len(phi) :], strict=True))
        learned = [t for t in ctx.through if t.requires_grad]
        with torch.enable_grad():
            found = ctx.minimiser.pull_back(phi, phi0, learned, q)
        by_learned = iter(found[len(phi0) :])
        rest = [next(by_learned) if t.requires_grad else None for t in ctx.through]
        return None, None, None, *[None] * len(phi), *found[: len(phi0)], *rest


def conjugate_gradients(
    product: Callable[[Vector], Vector], b: Vector, steps: int, scale: Vector
) -> Vector:
    """Return x with A x = b, nearly, by so many steps of preconditioned conjugate gradients.

    `product` multiplies with the symmetric A, and `scale` is a rough diagonal of it. Where A turns
    out not to be positive along a direction, as at a point that is no minimum, x stays as it is:
    it is finite, whatever A.

    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> ones = [torch.ones(2)]
    >>> x = conjugate_gradients(lambda v: [A @ v[0]], ones, 2, ones)
    >>> torch.allclose(A @ x[0], ones[0])
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
        x = [each + length * d for each, d in zip(x, p, strict=True)]
        r = [each - length * d for each, d in zip(r, along, strict=True)]
        y = [each / s for each, s in zip(r, scale, strict=True)]
        before, size = size, dot(r, y)
        going = going & (size > 0)
        turn = torch.where(going, size / before, 0)
        p = [each + turn * d for each, d in zip(y, p, strict=True)]
    return x


def dot(a: Vector, b: Vector) -> Tensor:
    """Return the inner product of two lists of tensors."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()
