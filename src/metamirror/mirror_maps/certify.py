"""Measure, with Jacobian-vector products alone, whether a map could be a mirror map."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from metamirror.core.mirror_map import MirrorMap, check_point, inner
from metamirror.core.tasks import Params
from metamirror.linalg.lanczos import Spectrum, lanczos
from metamirror.mirror_maps.base import norm, spread


@dataclass(frozen=True)
class Counterexample:
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
        monotone: whether smallest is above zero at all points; None where its sign could not be
            made out: it is zero within rounding, or Lanczos has not come far enough.
        counterexample: two points that refute monotonicity, where it fails.
    """

    points: int
    smallest: float
    largest: float
    asymmetry: float
    symmetric: bool
    monotone: bool | None
    counterexample: Counterexample | None


ROUNDING = 1e3
"""Rounding of a product with the Jacobian, in units of eps times the largest slope."""


def certify(
    g: MirrorMap,
    z: Params | Sequence[Params],
    n: int = 4,
    *,
    radius: float = 1.0,
    iterations: int = 40,
    seed: int = 0,
) -> Certificate:
    """Measure symmetry and monotonicity of g around given points, by Lanczos on its Jacobian.

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
    zero = ROUNDING * eps * max(abs(smallest), abs(largest), asymmetry)
    refuted = smallest < -zero
    positive = all(spectrum.low - spectrum.low_error > zero for spectrum, _ in spectra)
    return Certificate(
        points=len(points),
        smallest=smallest,
        largest=largest,
        asymmetry=asymmetry,
        symmetric=asymmetry <= zero,
        monotone=False if refuted else positive or None,
        counterexample=_counterexample(g, points[lowest], spectra[lowest][0].vector)
        if refuted
        else None,
    )


def _at_point(
    g: MirrorMap, point: Params, iterations: int, generator: torch.Generator
) -> tuple[Spectrum, float]:
    """Return the spectrum of the Jacobian's symmetric part, and the norm of J - J'."""
    prepared = g.prepare()

    def apply(z: Params) -> Params:
        phi: Params = g(z, prepared)
        return phi

    with torch.no_grad():
        pull = torch.func.vjp(apply, point)[1]

        def combined(v: Params, sign: int) -> Params:
            """Return Jv + J'v, or Jv - J'v."""
            j, jt = torch.func.jvp(apply, (point,), (v,))[1], pull(v)[0]
            return {name: j[name] + sign * jt[name] for name in v}

        def symmetric(v: Params) -> Params:
            return {name: t / 2 for name, t in combined(v, 1).items()}

        def skew_squared(v: Params) -> Params:
            return {name: -t for name, t in combined(combined(v, -1), -1).items()}

        spectrum = lanczos(symmetric, _noise(point, generator), iterations)
        square = lanczos(skew_squared, _noise(point, generator), max(2, iterations // 5)).high
    return spectrum, max(0.0, square) ** 0.5


def _counterexample(g: MirrorMap, z: Params, direction: Params) -> Counterexample | None:
    """Return a second point along the direction of negative curvature."""
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
                return Counterexample(z, other, product)
    return None


def _noise(like: Params, generator: torch.Generator) -> Params:
    return {
        name: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
        for name, t in like.items()
    }


def _around(point: Params, radius: float, generator: torch.Generator) -> Params:
    noise = _noise(point, generator)
    return {name: t + radius * spread(t) * noise[name] for name, t in point.items()}
