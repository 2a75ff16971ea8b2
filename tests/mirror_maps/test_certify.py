from __future__ import annotations

import time

import pytest
import torch
from maps import FLOWS, GRADIENT_MAPS, QUADRATIC_MAPS, jacobian, point, randomised

import metamirror as mm
from metamirror.mirror_maps import certify


@pytest.mark.parametrize("name", {**GRADIENT_MAPS, **QUADRATIC_MAPS, **FLOWS})
def test_certify_finds_the_spectrum_of_the_dense_jacobian(name):
    g = randomised({**GRADIENT_MAPS, **QUADRATIC_MAPS, **FLOWS}[name](), 0.5)
    z = point(2)
    j = jacobian(g, z)
    values = torch.linalg.eigvalsh((j + j.T) / 2)
    found = certify(g, z, n=1, iterations=43)
    assert found.smallest == pytest.approx(float(values[0]), rel=1e-6, abs=1e-9)
    assert found.largest == pytest.approx(float(values[-1]), rel=1e-6)
    skew = float(torch.linalg.matrix_norm(j - j.T, 2))
    assert found.asymmetry == pytest.approx(skew, rel=0.05, abs=1e-9)
    assert found.symmetric == (skew < 1e-9)
    assert found.monotone == (float(values[0]) > 0)
    assert (found.witness is None) == found.monotone


def test_random_points_lie_around_the_given_ones():
    g = randomised(FLOWS["blockIAF"](), 0.5)
    found = certify(g, [point(1), point(2)], n=5)
    assert found.points == 5
    with pytest.raises(ValueError, match="n is 0"):
        certify(g, point(1), n=0)
    with pytest.raises(ValueError, match="at least one point"):
        certify(g, [])


@pytest.mark.parametrize("method", ["blockiaf", "gradnet"])
def test_certify_takes_at_most_a_minute_on_conv4_with_64_filters(method):
    torch.manual_seed(0)
    learner = mm.make_learner(method, mm.models.Conv4())
    assert sum(p.numel() for p in learner.start().values()) == 121_093
    began = time.perf_counter()
    found = certify(randomised(learner.geometry.g, 0.01).float(), learner.start(), n=4)
    assert time.perf_counter() - began < 60
    assert found.points == 4
    assert found.symmetric == (method == "gradnet")
