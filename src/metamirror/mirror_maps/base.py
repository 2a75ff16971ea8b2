r"""What a mirror map is, and what can be asked of one.

A map here is the *inverse* mirror map of the paper, $g = (\nabla h)^{-1}: z \mapsto \phi$, from the
dual variable that descends to the parameters that the model runs with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params

Bounds = tuple[float, float]


class MirrorMap(nn.Module):
    """A map g over parameter dicts, phi = g(z). Its own parameters are meta-learned.

    >>> from metamirror.mirror_maps import Identity
    >>> Identity().bounds()
    (1.0, 1.0)
    """

    is_gradient: bool = False
    """Whether g = grad Psi for a convex Psi by construction, so that h = Psi* exists."""

    is_linear: bool = False
    """Whether the Jacobian is the same everywhere."""

    def prepare(self) -> Mapping[str, Any]:
        """What does not depend on z: computed once per outer step and passed to `forward`."""
        return {}

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        """Phi = g(z)."""
        raise NotImplementedError

    def constants(self) -> list[nn.Parameter]:
        """Those of its parameters that add a constant to g and do nothing else."""
        return []

    def inverse(self, phi: Params) -> Params:
        """Z with g(z) = phi: the mirror map itself, grad h, where h exists."""
        raise NotImplementedError

    def bounds(self, *, current: bool = False) -> Bounds | None:
        r"""(m, M) with $mI \preceq \partial g \preceq MI$ at every z, or None if there are none.

        Whatever values the parameters take; with `current=True` for those they have now.
        """
        return None

    def check_parameters(self) -> None:
        """Refuse a map whose own parameters are not finite: nothing can be said of it."""
        for name, p in self.named_parameters():
            if p.device.type != "meta" and not bool(torch.isfinite(p).all()):
                raise ValueError(f"the map's parameter {name} is not finite")

    def potential(self, z: Params) -> Tensor:
        """Psi(z), up to a constant, of a map that is a gradient."""
        raise ValueError(
            f"{type(self).__name__} is not the gradient of a function: it has no potential"
        )


def bregman(g: MirrorMap, phi: Params, other: Params) -> Tensor:
    r"""The Bregman divergence $D_h(\phi, \phi')$ of the h behind a map.

    Through the conjugate: with $z = \nabla h(\phi)$ and $\Psi = h^*$,
    $D_h(\phi, \phi') = D_\Psi(z', z) = \Psi(z') - \Psi(z) - \langle \phi, z' - z\rangle$,
    so that h itself is never needed.

    >>> from metamirror.mirror_maps import Identity
    >>> a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 0.0])}
    >>> float(bregman(Identity(), a, b))
    2.0
    """
    z, z_other = g.inverse(phi), g.inverse(other)
    difference = {name: z_other[name] - z[name] for name in z}
    return g.potential(z_other) - g.potential(z) - inner(phi, difference)


def inner(a: Params, b: Params) -> Tensor:
    """The inner product of two parameter dicts taken as vectors."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def norm(a: Params) -> Tensor:
    """The Euclidean norm of a parameter dict taken as one vector."""
    return inner(a, a).sqrt()


def log_cosh(x: Tensor) -> Tensor:
    """log(cosh(x)) without overflow."""
    magnitude = x.abs()
    return magnitude + nn.functional.softplus(-2 * magnitude) - 0.6931471805599453


def check_point(point: Params, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a point that lacks a parameter, has another shape, or is not finite."""
    if set(point) != set(shapes):
        raise ValueError(
            f"the point has {sorted(set(point) - set(shapes))} that the map does not know and "
            f"lacks {sorted(set(shapes) - set(point))}"
        )
    for name, tensor in point.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; the map has {shapes[name]}")
        if tensor.device.type != "meta" and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} is not finite: a map has no value and no inverse there")


def solve_contraction(target: Tensor, offset: Callable[[Tensor], Tensor], rho: float) -> Tensor:
    r"""U with $u + N(u) = t$, where N is a contraction with constant $\rho < 1$.

    Iterates $u \leftarrow t - N(u)$, whose error shrinks at least by $\rho$ each time: the number
    of iterations is known beforehand, and reached only by the worst map that the bound admits.
    """
    eps = torch.finfo(target.dtype).eps
    scale = float(target.detach().abs().max()) if target.numel() else 0.0
    u = target
    # After this many the first error is multiplied by at most exp(-42), below 1e-18.
    most = math.ceil(42 / -math.log(rho)) if rho > 0 else 1
    for _ in range(most):
        new = target - offset(u)
        change = float((new - u).detach().abs().max()) if u.numel() else 0.0
        u = new
        if change <= eps * (1 + scale):
            break
    return u
