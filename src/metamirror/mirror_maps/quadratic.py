r"""Maps of quadratic h.

$h = \frac12\|\cdot\|^2$ is gradient descent, $\frac12\|\cdot\|^2_{P^{-1}}$ a preconditioner,
$g(z) = Pz$.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metamirror.kronecker import ShapeGroups, kronecker_product, squared_spectrum, transposed
from metamirror.mirror_maps.base import Bounds, MirrorMap, check_point, inner, norm
from metamirror.types import Params


class Identity(MirrorMap):
    r"""$h = \frac12\|\cdot\|_2^2$: mirror descent is gradient descent."""

    is_gradient = True

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        return z

    def inverse(self, phi: Params) -> Params:
        check_point(phi, {name: tuple(p.shape) for name, p in phi.items()})
        return phi

    def bounds(self, *, current: bool = False) -> Bounds:
        return (1.0, 1.0)

    def potential(self, z: Params) -> Tensor:
        return inner(z, z) / 2


class Diagonal(MirrorMap):
    r"""$h = \frac12\|\cdot\|^2_{P^{-1}}$ with P = diag(rates): MetaSGD with positive rates.

    >>> g = Diagonal({"w": torch.tensor([0.5, 2.0])})
    >>> g.bounds(), g({"w": torch.ones(2)})["w"].tolist()
    ((0.5, 2.0), [0.5, 2.0])
    """

    is_gradient = True

    def __init__(self, rates: Params):
        super().__init__()
        self.rates = rates

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        return {name: rate * z[name] for name, rate in self.rates.items()}

    def inverse(self, phi: Params) -> Params:
        check_point(phi, {name: tuple(r.shape) for name, r in self.rates.items()})
        if self.bounds() is None:
            raise ValueError("a rate is not above zero: the map is not increasing and h not convex")
        return {name: phi[name] / rate for name, rate in self.rates.items()}

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds | None:
        low = min(float(r.min()) for r in self.rates.values())
        high = max(float(r.max()) for r in self.rates.values())
        return (low, high) if low > 0 else None

    def potential(self, z: Params) -> Tensor:
        return inner(z, self(z)) / 2


class KroneckerMetric(MirrorMap):
    r"""$h = \frac12\|\cdot\|^2_{P^{-1}}$ with $P = S^\top S$, S a Kronecker product per tensor.

    Positive definite MetaCurvature (its factors are $M = S_j^\top S_j$) and MetaKFO's linear form.

    Args:
        shapes: stored shapes of the parameters.
        factors: for each parameter, one invertible matrix per mode.
        modes: modes of single parameters where they differ from the stored shape.
    """

    is_gradient = True

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, Sequence[Tensor]],
        modes: Mapping[str, tuple[int, ...]] | None = None,
    ):
        super().__init__()
        self.groups = ShapeGroups(shapes, modes)
        self.factors = [
            [torch.stack([factors[name][j] for name in names]) for j in range(len(shape))]
            for shape, names in self.groups.members.items()
        ]

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        outputs = [
            kronecker_product(kronecker_product(x, f), transposed(f))
            for x, f in zip(self.groups.stack(z), self.factors, strict=True)
        ]
        return self.groups.unstack(outputs)

    def inverse(self, phi: Params) -> Params:
        check_point(phi, self.groups.shapes)
        if self.bounds() is None:
            raise ValueError("a factor is singular: the map has no inverse")
        inverses = [[torch.linalg.inv(f) for f in factors] for factors in self.factors]
        outputs = [
            kronecker_product(kronecker_product(x, transposed(f)), f)
            for x, f in zip(self.groups.stack(phi), inverses, strict=True)
        ]
        return self.groups.unstack(outputs)

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds | None:
        spectra = [squared_spectrum(factors) for factors in self.factors]
        low, high = min(s[0] for s in spectra), max(s[1] for s in spectra)
        return (low, high) if low > 0 else None

    def potential(self, z: Params) -> Tensor:
        return inner(z, self(z)) / 2


class Linear(MirrorMap):
    """Any constant linear preconditioner as a map to be examined: nothing is known beforehand.

    Args:
        apply: z -> Pz.
    """

    def __init__(self, apply: Callable[[Params], Params]):
        super().__init__()
        self._apply_to = apply

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        return self._apply_to(z)

    def inverse(self, phi: Params) -> Params:
        """By conjugate gradients on the normal equations."""
        check_point(phi, {name: tuple(p.shape) for name, p in phi.items()})
        pull = torch.func.vjp(self._apply_to, phi)[1]
        z = {name: torch.zeros_like(p) for name, p in phi.items()}
        residual = dict(phi)
        (s,) = pull(residual)
        direction, gamma = s, inner(s, s)
        size = sum(p.numel() for p in phi.values())
        tolerance = 10 * torch.finfo(next(iter(phi.values())).dtype).eps * norm(phi)
        for _ in range(10 * size):
            if norm(residual) <= tolerance:
                return z
            image = self._apply_to(direction)
            step = gamma / inner(image, image)
            z = {n: v + step * direction[n] for n, v in z.items()}
            residual = {n: v - step * image[n] for n, v in residual.items()}
            (s,) = pull(residual)
            gamma, old = inner(s, s), gamma
            direction = {n: v + gamma / old * direction[n] for n, v in s.items()}
        raise ValueError("the preconditioner is singular or nearly so: the map has no inverse")
