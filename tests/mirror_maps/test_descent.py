"""The descent lemmas, on losses whose smoothness is known."""

from __future__ import annotations

import pytest
import torch
from maps import randomised

from metamirror.adapt import descend
from metamirror.mirror_maps import Elementwise, GradientNet
from metamirror.mirror_maps.geometry import MirrorGeometry

D = 6


def least_squares(seed: int):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(20, D, generator=random, dtype=torch.float64)
    y = torch.randn(20, generator=random, dtype=torch.float64)
    ell = float(torch.linalg.eigvalsh(x.T @ x / 20)[-1])
    return lambda phi: ((x @ phi["w"] - y).square().mean() / 2,) * 2, ell


def logistic(seed: int):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(20, D, generator=random, dtype=torch.float64)
    y = torch.randint(2, (20,), generator=random).double() * 2 - 1
    ell = float(torch.linalg.eigvalsh(x.T @ x / 20)[-1]) / 4
    return lambda phi: (torch.nn.functional.softplus(-y * (x @ phi["w"])).mean(),) * 2, ell


MAPS = {
    "elementwise": lambda start: Elementwise(start),
    "gradnet": lambda start: GradientNet(start, units=8),
    "gradnet, Kronecker": lambda start: GradientNet(start, metric="kronecker", units=8),
}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("loss", [least_squares, logistic])
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("bounds", ["always", "current"])
def test_every_step_descends_by_what_the_lemma_says(name, loss, share, bounds):
    r"""g is the gradient of a convex function, so it is co-coercive: with
    |phi+ - phi| <= M alpha |G| and <G, phi - phi+> >= |phi+ - phi|^2 / (M alpha),
    L(phi+) <= L(phi) - (1/(M alpha) - l/2) |phi+ - phi|^2, for alpha < 2/(l M)."""
    for seed in range(5):
        lower, ell = loss(seed)
        start = {"w": torch.randn(D, generator=torch.Generator().manual_seed(seed)).double()}
        g = randomised(MAPS[name](start), 1.0, seed)
        m, largest = g.bounds(current=bounds == "current")
        alpha = share * 2 / (ell * largest)
        geometry = MirrorGeometry(g)
        state = geometry.begin(start, geometry.prepare(), {})
        path = descend(lower, geometry, state, steps=30, lr=alpha, order="none", keep=True)
        values = [float(lower(phi)[0]) for phi in path.points]
        for k in range(30):
            moved = float((path.points[k + 1]["w"] - path.points[k]["w"]).square().sum())
            assert values[k + 1] <= values[k] - (1 / (largest * alpha) - ell / 2) * moved + 1e-12
            # The first lemma, which needs no symmetry but m: it says less, and holds too.
            gain = alpha * (m - alpha * ell * largest**2 / 2) * float(path.grad_norms[k]) ** 2
            assert values[k + 1] <= values[k] - gain + 1e-12
        assert values[-1] < values[0]
