"""The descent lemmas, on losses whose smoothness is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from metamirror.core.adjoints import Detached
from metamirror.core.inner_loop import Path, descend
from metamirror.mirror_maps import Elementwise, GradientNet, Linear, MirrorMap
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from tests.mirror_maps.maps import RANGE, randomised

SHAPE = (3, 2)
STEPS = 30


def design(seed: int):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 6, generator=random, dtype=torch.float64)
    y = torch.randn(20, generator=random, dtype=torch.float64)
    return x, y, float(torch.linalg.eigvalsh(x.T @ x / 20)[-1])


def least_squares(seed: int):
    x, y, ell = design(seed)
    return lambda phi, phi0=None: ((x @ phi["w"].reshape(-1) - y).square().mean() / 2,) * 2, ell


def logistic(seed: int):
    x, y, ell = design(seed)
    return (
        lambda phi, phi0=None: (
            (torch.nn.functional.softplus(-y.sign() * (x @ phi["w"].reshape(-1))).mean(),) * 2
        ),
        ell / 4,
    )


losses = pytest.mark.parametrize("loss", [least_squares, logistic])
shares = pytest.mark.parametrize("share", [0.1, 0.5, 0.95])

MAPS = {
    "elementwise": lambda start: Elementwise(start),
    "gradnet": lambda start: GradientNet(start, metric="diagonal", units=8, log_range=RANGE),
    "gradnet, Kronecker metric": lambda start: GradientNet(start, units=8, log_range=RANGE),
}


def start_at(seed: int):
    random = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(SHAPE, generator=random, dtype=torch.float64)}


def path_of(lower, g: MirrorMap, start, alpha: float) -> Path:
    geometry = MirrorDescent(g, start="dual")
    with torch.no_grad():
        state = geometry.begin(start, geometry.prepare(None), {})
    return descend(lower, geometry, state, steps=STEPS, lr=alpha, adjoint=Detached(), keep=True)


def distances(path: Path) -> list[float]:
    return [float((b["w"] - a["w"]).square().sum()) for a, b in pairwise(path.points)]


@shares
@losses
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("current", [False, True])
def test_gradient_maps_descend_for_every_step_size_below_two_over_l_m(name, loss, share, current):
    """Co-coercive: L(phi+) <= L(phi) - (1/(M alpha) - l/2) |phi+ - phi|^2, whatever m is."""
    for seed in range(5):
        lower, ell = loss(seed)
        g = randomised(MAPS[name](start_at(seed)), 1.0, seed)
        _, largest = g.bounds(current=current)
        alpha = share * 2 / (ell * largest)
        path = path_of(lower, g, start_at(seed), alpha)
        values = [float(lower(phi)[0]) for phi in path.points]
        for (before, after), moved in zip(pairwise(values), distances(path), strict=True):
            assert after <= before - (1 / (largest * alpha) - ell / 2) * moved + 1e-13
        assert values[-1] < values[0]


def rotated() -> tuple[MirrorMap, float, float]:
    """Strongly monotone and not symmetric: z -> (I + K) z with K skew."""
    random = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=random, dtype=torch.float64)
    matrix = torch.eye(6, dtype=torch.float64) + (root - root.T)
    g = Linear(lambda z: {"w": (matrix @ z["w"].reshape(-1)).reshape(SHAPE)})
    return g, 1.0, float(torch.linalg.matrix_norm(matrix, 2))


@shares
@losses
@pytest.mark.parametrize("name", [*MAPS, "rotated"])
def test_monotone_maps_descend_for_step_sizes_below_two_m_over_l_m_squared(name, loss, share):
    """L(phi+) <= L(phi) - alpha (m - alpha l M^2 / 2) |G|^2, symmetric or not."""
    for seed in range(5):
        lower, ell = loss(seed)
        if name == "rotated":
            g, m, largest = rotated()
        else:
            g = randomised(MAPS[name](start_at(seed)), 0.3, seed)
            m, largest = g.bounds(current=True)
        alpha = share * 2 * m / (ell * largest**2)
        path = path_of(lower, g, start_at(seed), alpha)
        gain = alpha * (m - alpha * ell * largest**2 / 2)
        assert gain > 0
        values = [float(lower(phi)[0]) for phi in path.points]
        for (before, after), slope in zip(pairwise(values), path.grad_norms.tolist(), strict=True):
            assert after <= before - gain * slope**2 + 1e-13
