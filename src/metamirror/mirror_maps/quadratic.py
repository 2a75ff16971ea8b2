r"""Maps of quadratic h.

$h = \frac12\|\cdot\|^2$ is gradient descent, $\frac12\|\cdot\|^2_{P^{-1}}$ a preconditioner,
$g(z) = Pz$.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metamirror.core.mirror_map import Bounds, MirrorMap, check_point, inner
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import ShapeGroups, kronecker_product, squared_spectrum, transposed
from metamirror.linalg.tensor_stacks import flat, unflat

MOST_DENSE = 4096
"""How many numbers a `Linear` map may have for its inverse, which is solved for densely."""


class Quadratic(MirrorMap):
    r"""$g(z) = Pz$ with a symmetric P, the gradient of $\frac12\|z\|^2_P$."""

    is_linear = True

    def potential(self, z: Params) -> Tensor:
        return inner(z, self(z)) / 2


class Diagonal(Quadratic):
    r"""$h = \frac12\|\cdot\|^2_{P^{-1}}$ with P = diag(rates): MetaSGD with positive rates.

    >>> g = Diagonal({"w": torch.tensor([0.5, 2.0])})
    >>> g.bounds(), g({"w": torch.ones(2)})["w"].tolist()
    ((0.5, 2.0), [0.5, 2.0])
    """

    def __init__(self, rates: Params):
        super().__init__()
        self.names = list(rates)
        # Parameter names hold dots, which those of buffers cannot.
        for i, rate in enumerate(rates.values()):
            self.register_buffer(f"rate_{i}", rate.detach())
        # Of a convex function only where no rate is negative or zero.
        self.is_gradient = all(r.is_meta or bool((r > 0).all()) for r in rates.values())

    @property
    def rates(self) -> Params:
        """The diagonal of P, by parameter."""
        return {name: getattr(self, f"rate_{i}") for i, name in enumerate(self.names)}

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        return {name: rate * z[name] for name, rate in self.rates.items()}

    def inverse(self, phi: Params) -> Params:
        check_point(phi, {name: tuple(r.shape) for name, r in self.rates.items()})
        if self.bounds() is None:
            raise ValueError("a rate is not above zero: the map is not increasing and h not convex")
        return {name: phi[name] / rate for name, rate in self.rates.items()}

    def bounds(self, *, current: bool = False) -> Bounds | None:
        for name, rate in self.rates.items():
            if not bool(torch.isfinite(rate).all()):
                raise ValueError(f"the rates of {name} are not finite")
        low = min(float(r.min()) for r in self.rates.values())
        high = max(float(r.max()) for r in self.rates.values())
        return (low, high) if low > 0 else None


class KroneckerMetric(Quadratic):
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
        for i, (shape, names) in enumerate(self.groups.members.items()):
            for name in names:
                found = [tuple(f.shape) for f in factors.get(name, ())]
                if found != [(n, n) for n in shape]:
                    raise ValueError(
                        f"{name} has factors of shapes {found}; its modes {shape} need one "
                        f"square matrix each"
                    )
            for j in range(len(shape)):
                stacked = torch.stack([factors[name][j].detach() for name in names])
                self.register_buffer(f"factor_{i}_{j}", stacked)

    @property
    def factors(self) -> list[list[Tensor]]:
        """The factors of S, group by group and mode by mode."""
        return [
            [getattr(self, f"factor_{i}_{j}") for j in range(len(shape))]
            for i, shape in enumerate(self.groups.members)
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
        # Below this a singular value is rounding: the factor counts as singular.
        eps = torch.finfo(self.factors[0][0].dtype).eps
        return (low, high) if low > 100 * eps**2 * high and low > 0 else None


class Linear(MirrorMap):
    """Any constant linear preconditioner as a map to be examined: nothing is known beforehand.

    Args:
        apply: z -> Pz.
    """

    is_linear = True

    def __init__(self, apply: Callable[[Params], Params]):
        super().__init__()
        self._apply_to = apply

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        return self._apply_to(z)

    def inverse(self, phi: Params) -> Params:
        """Solve densely, which is for small maps."""
        check_point(phi, {name: tuple(p.shape) for name, p in phi.items()})
        target = flat(phi)
        if target.numel() > MOST_DENSE:
            raise ValueError(
                f"{target.numel()} numbers; only up to {MOST_DENSE} are solved densely"
            )
        with torch.no_grad():
            eye = torch.eye(target.numel(), dtype=target.dtype, device=target.device)
            images = [self._apply_to(unflat(row, phi)) for row in eye]
            matrix = torch.stack([flat({name: v[name] for name in phi}) for v in images], 1)
            try:
                return unflat(torch.linalg.solve(matrix, target), phi)
            except RuntimeError as error:
                raise ValueError("the preconditioner is singular: it has no inverse") from error
