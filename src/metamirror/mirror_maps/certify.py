"""Measures, with Jacobian-vector products alone, whether a map could be a mirror map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metamirror.mirror_maps.base import MirrorMap, inner
from metamirror.mirror_maps.elementwise import spread
from metamirror.types import Params


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
        monotone: smallest is above zero.
        witness: two points that refute monotonicity, where it fails.
    """

    points: int
    smallest: float
    largest: float
    asymmetry: float
    symmetric: bool
    monotone: bool
    witness: Witness | None


def certify(
    g: MirrorMap,
    z: Params | Sequence[Params],
    n: int = 4,
    *,
    radius: float = 1.0,
    iterations: int = 24,
    seed: int = 0,
) -> Certificate:
    """Symmetry and monotonicity of g around given points, by Lanczos on its Jacobian.

    No d by d matrix is formed: each iteration takes one product with J and one with its transpose.

    Args:
        g: the map.
        z: a point, or several.
        n: how many points to look at in all: the given ones, then random ones around them.
        radius: how far the random points lie from a given one, in units of each tensor's spread.
        iterations: of Lanczos, per point.
        seed: of the random points and start vectors.

    >>> from metamirror.mirror_maps import Diagonal
    >>> certify(Diagonal({"w": torch.tensor([0.5, 2.0])}), {"w": torch.zeros(2)}).monotone
    True
    """
    given = [z] if isinstance(z, dict) else list(z)
    if not given:
        raise ValueError("certify needs at least one point")
    if n < 1:
        raise ValueError(f"n is {n}; certify looks at one point at least")
    generator = torch.Generator().manual_seed(seed)
    points = [_detached(p) for p in given[:n]]
    points += [_around(points[i % len(points)], radius, generator) for i in range(n - len(points))]
    results = [_at_point(g, point, iterations, generator) for point in points]
    smallest = min(r[0] for r in results)
    largest = max(r[1] for r in results)
    asymmetry = max(r[3] for r in results)
    eps = torch.finfo(next(iter(points[0].values())).dtype).eps
    size = max(abs(smallest), abs(largest), asymmetry)
    witness = None
    if smallest <= 0:
        worst = min(range(len(results)), key=lambda i: results[i][0])
        witness = _witness(g, points[worst], results[worst][2])
    return Certificate(
        points=len(points),
        smallest=smallest,
        largest=largest,
        asymmetry=asymmetry,
        # A product with J sums over up to d terms: rounding grows with the root of that.
        symmetric=asymmetry <= 100 * eps * size * sum(t.numel() for t in points[0].values()) ** 0.5,
        monotone=smallest > 0,
        witness=witness,
    )


def _at_point(
    g: MirrorMap, point: Params, iterations: int, generator: torch.Generator
) -> tuple[float, float, Params, float]:
    """Extreme Rayleigh quotients of the symmetric part, the lowest's vector, and the asymmetry."""
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

        def skew_squared(v: Params) -> Params:
            def skew(x: Params) -> Params:
                j, jt = push(x), pull(x)[0]
                return {name: j[name] - jt[name] for name in x}

            return {name: -t for name, t in skew(skew(v)).items()}

        low, high, vector = lanczos(symmetric, _noise(point, generator), iterations)
        square = lanczos(skew_squared, _noise(point, generator), max(2, iterations // 3))[1]
    return low, high, vector, max(0.0, square) ** 0.5


def lanczos(
    operator: Callable[[Params], Params], start: Params, iterations: int
) -> tuple[float, float, Params]:
    """The extreme eigenvalues of a symmetric operator, and the eigenvector of the lowest.

    Both are Rayleigh quotients, so they never lie outside the true spectrum. Every new direction
    is made orthogonal to all before it: with so few of them that is cheap, and it keeps rounding
    from producing spurious copies.
    """
    names = list(start)
    flat = _flat(start)
    basis = [flat / flat.norm()]
    diagonal: list[Tensor] = []
    off: list[Tensor] = []
    for _ in range(min(iterations, flat.numel())):
        image = _flat(operator(_named(basis[-1], start, names)))
        diagonal.append(image @ basis[-1])
        for _ in range(2):
            stacked = torch.stack(basis)
            image = image - stacked.T @ (stacked @ image)
        length = image.norm()
        if length <= 1e-10 * diagonal[0].abs().clamp_min(1e-30) or len(basis) == flat.numel():
            break
        off.append(length)
        basis.append(image / length)
    k = len(diagonal)
    matrix = torch.diag(torch.stack(diagonal))
    if k > 1:
        sides = torch.stack(off[: k - 1])
        matrix = matrix + torch.diag(sides, 1) + torch.diag(sides, -1)
    values, vectors = torch.linalg.eigh(matrix)
    lowest = torch.stack(basis[:k]).T @ vectors[:, 0]
    return float(values[0]), float(values[-1]), _named(lowest, start, names)


def _witness(g: MirrorMap, z: Params, direction: Params) -> Witness | None:
    """A second point along the direction of negative curvature, as far as the product allows."""
    with torch.no_grad():
        here = g(z)
        for exponent in range(2, -7, -1):
            other = {name: t + 10.0**exponent * direction[name] for name, t in z.items()}
            there = g(other)
            moved = {name: other[name] - t for name, t in z.items()}
            changed = {name: there[name] - t for name, t in here.items()}
            product = float(inner(moved, changed))
            if product < 0:
                return Witness(z, other, product)
    return None


def _flat(tensors: Params) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors.values()])


def _named(flat: Tensor, like: Params, names: list[str]) -> Params:
    parts = flat.split([like[name].numel() for name in names])
    return {name: part.view_as(like[name]) for name, part in zip(names, parts, strict=True)}


def _detached(point: Params) -> Params:
    return {name: t.detach() for name, t in point.items()}


def _noise(like: Params, generator: torch.Generator) -> Params:
    return {
        name: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
        for name, t in like.items()
    }


def _around(point: Params, radius: float, generator: torch.Generator) -> Params:
    noise = _noise(point, generator)
    return {name: t + radius * spread(t) * noise[name] for name, t in point.items()}
