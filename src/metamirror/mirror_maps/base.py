r"""Tools that the mirror maps share."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds, MirrorMap, inner
from metamirror.core.tasks import Params

MOST_LOG_RANGE = 40.0
"""The exponential of it, squared, is still a float32."""


def bregman(g: MirrorMap, phi: Params, other: Params) -> Tensor:
    r"""Return the Bregman divergence $D_h(\phi, \phi')$ of the h behind a map.

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
    """Return the Euclidean norm of a parameter dict taken as one vector."""
    return inner(a, a).sqrt()


def log_cosh(x: Tensor) -> Tensor:
    """Return log(cosh(x)) without overflow."""
    magnitude = x.abs()
    return magnitude + nn.functional.softplus(-2 * magnitude) - 0.6931471805599453


def spread(tensor: Tensor) -> float:
    """Return the standard deviation of a tensor's entries; their size where they hardly differ."""
    if tensor.device.type == "meta" or tensor.numel() < 2:
        return 1.0
    values = tensor.detach().double()
    deviation, size = float(values.std()), float(values.square().mean().sqrt())
    return deviation if deviation > 0.01 * size else size or 1.0


class ContractionMap(MirrorMap):
    r"""A map $S^\top(u + N(u))$, $u = Sz$, where N is a gradient with slopes below rho < 1.

    The eigenvalues of $S^\top S$ lie between exp(-log_range) and exp(log_range).
    """

    is_gradient = True

    def __init__(self, rho: float, log_range: float):
        super().__init__()
        if not 0 <= rho < 1:
            raise ValueError(
                f"rho is {rho}; it must lie in [0, 1), or the map could fail to increase"
            )
        if not 0 <= log_range <= MOST_LOG_RANGE:
            raise ValueError(
                f"log_range is {log_range}; it must lie between 0 and {MOST_LOG_RANGE}"
            )
        self.rho, self.log_range = rho, log_range

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds:
        if not current:
            reach = math.exp(self.log_range)
            return ((1 - self.rho) / reach, (1 + self.rho) * reach)
        self.check_parameters()
        return self._current_bounds()

    @abstractmethod
    def _current_bounds(self) -> Bounds:
        """Return the bounds that the present parameters give."""

    def _solve(
        self, targets: list[Tensor], offsets: Callable[[list[Tensor]], list[Tensor]]
    ) -> list[Tensor]:
        r"""Return u with $u + N(u) = t$.

        Iterates $u \leftarrow t - N(u)$, whose error shrinks at least by $\rho$ each time: the
        number of iterations is known beforehand, and reached only by the worst map there can be.
        """
        close = torch.finfo(targets[0].dtype).eps * (1 + largest_entry(targets))
        u = targets
        # After this many the first error is multiplied by at most exp(-42), below 1e-18.
        for _ in range(math.ceil(42 / -math.log(self.rho)) if self.rho > 0 else 1):
            before, u = u, [t - n for t, n in zip(targets, offsets(u), strict=True)]
            if largest_entry(a - b for a, b in zip(u, before, strict=True)) <= close:
                break
        return u


def largest_entry(tensors: Iterable[Tensor]) -> float:
    """Return the largest magnitude of any entry."""
    return max((float(t.detach().abs().max()) for t in tensors if t.numel()), default=0.0)
