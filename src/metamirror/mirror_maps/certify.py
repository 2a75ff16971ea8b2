"""Measures, with Jacobian-vector products alone, whether a map could be a mirror map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metamirror.core.tasks import Params
from metamirror.mirror_maps.base import MirrorMap, check_point, inner, norm
from metamirror.mirror_maps.elementwise import spread


@dataclass(frozen=True)
class Witness:
    """Two points at which a map is not increasing.

    Attributes:
        z: one point.
        other: the other.
        product: (z - z')'(g(z) - g(z')), negative.
    """

    z: Params
    other: Params
    product: float


@dataclass(frozen=True)
class Certificate:
    """What was measured, and at how many points.

    Attributes:
        points: how many points were looked at.
        smallest: the smallest Rayleigh quotient of the Jacobian's symmetric part.
        largest: the largest one.
        asymmetry: the largest spectral norm of J - J', a lower estimate that is near the truth.
        symmetric: asymmetry is zero within rounding.
        monotone: whether smallest is above zero at all points; False also where it is zero to the
            last digits; None where neither could be made out, in this precision or so few steps.
        witness: two points that refute monotonicity, where it fails by more than rounding.
    """

    points: int
    smallest: float
    largest: float
    asymmetry: float
    symmetric: bool
    monotone: bool | None
    witness: Witness | None


# Rounding in a product with the Jacobian, in units of eps times its size.
ROUNDING = 1e3


def certify(
    g: MirrorMap,
    z: Params | Sequence[Params],
    n: int = 4,
    *,
    radius: float = 1.0,
    iterations: int = 40,
    seed: int = 0,
) -> Certificate:
    """Symmetry and monotonicity of g around given points, by Lanczos on its Jacobian.

    No d by d matrix is formed: each iteration takes one product with J and one with its transpose.
    A measurement at points: a negative slope refutes monotonicity, positive ones do not prove it.

    Args:
        g: the map.
        z: a point, or several; all of them are looked at.
        n: how many points to look at in all: the given ones, then random ones around them.
        radius: how far the random points lie from a given one, in units of each tensor's spread.
        iterations: of Lanczos at the most, per point.
        seed: of the random points and start vectors.

    >>> from metamirror.mirror_maps import Diagonal
    >>> certify(Diagonal({"w": torch.tensor([0.5, 2.0])}), {"w": torch.zeros(2)}).monotone
    True
    """
    given = [z] if isinstance(z, dict) else list(z)
    if not given:
        raise ValueError("certify needs at least one point")
    for name, value in (("n", n), ("iterations", iterations)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if not 0 <= radius < float("inf"):
        raise ValueError(f"radius is {radius}; it must be finite and at least 0")
    g.check_parameters()
    for one in given:
        check_point(one, {name: tuple(t.shape) for name, t in given[0].items()})
    generator = torch.Generator().manual_seed(seed)
    points = [{name: one[name].detach() for name in given[0]} for one in given]
    points += [_around(points[i % len(given)], radius, generator) for i in range(n - len(given))]
    spectra = [_at_point(g, point, iterations, generator) for point in points]
    lowest = min(range(len(points)), key=lambda i: spectra[i][0].low)
    smallest = spectra[lowest][0].low
    largest = max(spectrum.high for spectrum, _ in spectra)
    asymmetry = max(skew for _, skew in spectra)
    eps = torch.finfo(next(iter(points[0].values())).dtype).eps
    size = max(abs(smallest), abs(largest), asymmetry)
    zero = ROUNDING * eps * size
    monotone: bool | None = None
    if smallest < -zero or abs(smallest) <= 10 * eps * size:
        monotone = False
    elif all(spectrum.low - spectrum.low_error > zero for spectrum, _ in spectra):
        monotone = True
    refuted = smallest < -zero
    return Certificate(
        points=len(points),
        smallest=smallest,
        largest=largest,
        asymmetry=asymmetry,
        symmetric=asymmetry <= zero,
        monotone=monotone,
        witness=_witness(g, points[lowest], spectra[lowest][0].vector) if refuted else None,
    )


def _at_point(
    g: MirrorMap, point: Params, iterations: int, generator: torch.Generator
) -> tuple[Spectrum, float]:
    """The spectrum of the Jacobian's symmetric part, and the norm of J - J'."""
    prepared = g.prepare()

    def apply(z: Params) -> Params:
        phi: Params = g(z, prepared)
        return phi

    with torch.no_grad():
        pull = torch.func.vjp(apply, point)[1]

        def push(v: Params) -> Params:
            tangent: Params = torch.func.jvp(apply, (point,), (v,))[1]
            return tangent

        def symmetric(v: Params) -> Params:
            j, jt = push(v), pull(v)[0]
            return {name: (j[name] + jt[name]) / 2 for name in v}

        def skew(v: Params) -> Params:
            j, jt = push(v), pull(v)[0]
            return {name: j[name] - jt[name] for name in v}

        def skew_squared(v: Params) -> Params:
            return {name: -t for name, t in skew(skew(v)).items()}

        spectrum = lanczos(symmetric, _noise(point, generator), iterations)
        square = lanczos(skew_squared, _noise(point, generator), max(2, iterations // 5)).high
    return spectrum, max(0.0, square) ** 0.5


@dataclass(frozen=True)
class Spectrum:
    """The ends of a symmetric operator's spectrum, as far as Lanczos has come.

    Attributes:
        low: the smallest Rayleigh quotient found.
        high: the largest one.
        low_error: an eigenvalue lies within this distance of `low`.
        vector: the direction that belongs to `low`, of length one.
    """

    low: float
    high: float
    low_error: float
    vector: Params


def lanczos(operator: Callable[[Params], Params], start: Params, iterations: int) -> Spectrum:
    """The extreme eigenvalues of a symmetric operator, from products with it alone.

    Both are Rayleigh quotients, so they do not lie outside the true spectrum by more than rounding.
    Every new direction is made orthogonal to all before it: with so few of them that is cheap,
    and it keeps rounding from producing spurious copies. Stops early once both ends are settled.
    """
    like = next(iter(start.values()))
    # Apple's GPUs have no double precision.
    precise = torch.float32 if like.device.type == "mps" else torch.float64
    eps = torch.finfo(like.dtype).eps
    flat = _flat(start).to(precise)
    basis = [flat / flat.norm()]
    diagonal: list[Tensor] = []
    off: list[Tensor] = []
    size = 0.0
    while True:
        image = _flat(operator(_named(basis[-1].to(like.dtype), start))).to(precise)
        size = max(size, float(image.norm()))
        diagonal.append(image @ basis[-1])
        for _ in range(2):
            stacked = torch.stack(basis)
            image = image - stacked.T @ (stacked @ image)
        length = image.norm()
        values, vectors = torch.linalg.eigh(_tridiagonal(diagonal, off))
        # Ritz values: an eigenvalue lies within `errors` of each end.
        errors = (length * vectors[-1].abs()).tolist()
        settled = len(basis) >= 8 and all(
            errors[i] <= 1e-3 * abs(float(values[i])) for i in (0, -1)
        )
        # What is left after projection is rounding: the directions found are all there are.
        exhausted = float(length) <= 100 * eps * size or len(basis) == flat.numel()
        if exhausted or settled or len(basis) == iterations:
            break
        off.append(length)
        basis.append(image / length)
    lowest = torch.stack(basis).T @ vectors[:, 0]
    return Spectrum(
        low=float(values[0]),
        high=float(values[-1]),
        low_error=0.0 if exhausted else errors[0],
        vector=_named(lowest.to(like.dtype), start),
    )


def _tridiagonal(diagonal: list[Tensor], off: list[Tensor]) -> Tensor:
    matrix = torch.diag(torch.stack(diagonal))
    if off:
        sides = torch.stack(off)
        matrix = matrix + torch.diag(sides, 1) + torch.diag(sides, -1)
    return matrix


def _witness(g: MirrorMap, z: Params, direction: Params) -> Witness | None:
    """A second point along the direction of negative curvature, as far as the product allows."""
    eps = torch.finfo(next(iter(z.values())).dtype).eps
    with torch.no_grad():
        here = g(z)
        for exponent in range(2, -7, -1):
            other = {name: t + 10.0**exponent * direction[name] for name, t in z.items()}
            there = g(other)
            moved = {name: other[name] - t for name, t in z.items()}
            changed = {name: there[name] - t for name, t in here.items()}
            product = float(inner(moved, changed))
            # Rounding in g(z') - g(z) must not pass for a product.
            noise = eps * float(norm(moved) * (norm(here) + norm(there)))
            if product < -noise:
                return Witness(z, other, product)
    return None


def _flat(tensors: Params) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors.values()])


def _named(flat: Tensor, like: Params) -> Params:
    parts = flat.split([t.numel() for t in like.values()])
    return {name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)}


def _noise(like: Params, generator: torch.Generator) -> Params:
    return {
        name: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
        for name, t in like.items()
    }


def _around(point: Params, radius: float, generator: torch.Generator) -> Params:
    noise = _noise(point, generator)
    return {name: t + radius * spread(t) * noise[name] for name, t in point.items()}
