r"""Tools that the mirror maps share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds, MirrorMap, check_point, inner
from metamirror.core.tasks import Params

__all__ = [
    "Bounds",
    "MirrorMap",
    "bregman",
    "check_point",
    "inner",
    "log_cosh",
    "norm",
    "solve_contraction",
]


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


def norm(a: Params) -> Tensor:
    """The Euclidean norm of a parameter dict taken as one vector."""
    return inner(a, a).sqrt()


def log_cosh(x: Tensor) -> Tensor:
    """log(cosh(x)) without overflow."""
    magnitude = x.abs()
    return magnitude + nn.functional.softplus(-2 * magnitude) - 0.6931471805599453


def spread(tensor: Tensor) -> float:
    """The standard deviation of a tensor's entries; 1 where they are all equal."""
    if tensor.device.type == "meta" or tensor.numel() < 2:
        return 1.0
    return float(tensor.double().std()) or 1.0


# Maps z -> S'(u + N(u)), u = Sz: N has slopes below rho < 1, S'S lies within exp(+-log_range).

MOST_LOG_RANGE = 40.0
"""The exponential of it, squared, is still a float32."""


def check_contraction(rho: float, log_range: float) -> None:
    """Refuse constants for which the bounds cannot hold."""
    if not 0 <= rho < 1:
        raise ValueError(f"rho is {rho}; it must lie in [0, 1), or the map could fail to increase")
    if not 0 <= log_range <= MOST_LOG_RANGE:
        raise ValueError(f"log_range is {log_range}; it must lie between 0 and {MOST_LOG_RANGE}")


def lasting_bounds(rho: float, log_range: float) -> Bounds:
    """The bounds that hold whatever is learned."""
    return ((1 - rho) / math.exp(log_range), (1 + rho) * math.exp(log_range))


def solve_contraction(
    targets: list[Tensor], offsets: Callable[[list[Tensor]], list[Tensor]], rho: float
) -> list[Tensor]:
    r"""U with $u + N(u) = t$, where N is a contraction with constant $\rho < 1$.

    Iterates $u \leftarrow t - N(u)$, whose error shrinks at least by $\rho$ each time: the number
    of iterations is known beforehand, and reached only by the worst map that the bound admits.
    """
    eps = torch.finfo(targets[0].dtype).eps
    scale = largest_entry(targets)
    u = targets
    # After this many the first error is multiplied by at most exp(-42), below 1e-18.
    most = math.ceil(42 / -math.log(rho)) if rho > 0 else 1
    for _ in range(most):
        new = [t - n for t, n in zip(targets, offsets(u), strict=True)]
        change = largest_entry([a - b for a, b in zip(new, u, strict=True)])
        u = new
        if change <= eps * (1 + scale):
            break
    return u


def largest_entry(tensors: Iterable[Tensor]) -> float:
    """The largest magnitude of any entry."""
    return max((float(t.detach().abs().max()) for t in tensors if t.numel()), default=0.0)
