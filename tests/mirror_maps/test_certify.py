from __future__ import annotations

import time

import pytest
import torch

import metamirror as mm
from metamirror.mirror_maps import Diagonal, Linear, certify
from metamirror.testing.maps import jacobian
from tests.mirror_maps.maps import FLOWS, GRADIENT_MAPS, QUADRATIC_MAPS, point, randomised


@pytest.mark.parametrize("name", {**GRADIENT_MAPS, **QUADRATIC_MAPS, **FLOWS})
def test_certify_finds_the_spectrum_of_the_dense_jacobian(name):
    g = randomised({**GRADIENT_MAPS, **QUADRATIC_MAPS, **FLOWS}[name](), 0.5)
    z = point(2)
    j = jacobian(g, z)
    values = torch.linalg.eigvalsh((j + j.T) / 2)
    found = certify(g, z, n=1, iterations=43)
    assert found.smallest == pytest.approx(float(values[0]), rel=1e-4, abs=1e-9)
    assert found.largest == pytest.approx(float(values[-1]), rel=1e-4)
    skew = float(torch.linalg.matrix_norm(j - j.T, 2))
    assert found.asymmetry == pytest.approx(skew, rel=0.05, abs=1e-9)
    assert found.symmetric == (skew < 1e-9)
    assert found.monotone == (float(values[0]) > 0)
    assert (found.counterexample is None) == found.monotone


def test_random_points_lie_around_the_given_ones():
    g = randomised(FLOWS["blockIAF"](), 0.5)
    found = certify(g, [point(1), point(2)], n=5)
    assert found.points == 5
    assert certify(g, [point(i) for i in range(6)], n=2).points == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"z": []}, "at least one point"),
        ({"n": 0}, "n is 0"),
        ({"iterations": 0}, "iterations is 0"),
        ({"radius": float("nan")}, "radius is nan"),
        ({"z": {**point(1), "a.bias": torch.full((4,), float("nan"))}}, r"a\.bias is not finite"),
        ({"z": [point(1), {"w": torch.zeros(1)}]}, "lacks"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments, words):
    g = FLOWS["blockIAF"]().double()
    with pytest.raises(ValueError, match=words):
        certify(g, **{"z": point(1), **arguments})


@pytest.mark.parametrize("name", GRADIENT_MAPS)
def test_a_map_whose_parameters_are_not_finite_is_named(name):
    g = GRADIENT_MAPS[name]().double()
    with torch.no_grad():
        list(g.parameters())[-1].view(-1)[0] = float("nan")
    for ask in (lambda: certify(g, point(1)), lambda: g.bounds(current=True)):
        with pytest.raises(ValueError, match="is not finite"):
            ask()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rates", [[1.0] * 1000, [1.7] * 1000, [0.5] * 500 + [2.0] * 500])
def test_equal_eigenvalues_are_found_in_either_precision(rates, dtype):
    rates = torch.tensor(rates, dtype=dtype)
    found = certify(Diagonal({"w": rates}), {"w": torch.randn(1000).to(dtype)})
    assert found.smallest == pytest.approx(float(rates.min()), rel=1e-5)
    assert found.largest == pytest.approx(float(rates.max()), rel=1e-5)
    assert found.monotone
    assert found.symmetric


@pytest.mark.parametrize("method", ["blockiaf", "gradnet"])
def test_a_fresh_map_in_single_precision_is_the_identity(method):
    torch.manual_seed(0)
    learner = mm.make_learner(method, mm.models.Conv4(width=16, image_size=28, channels=1))
    found = certify(learner.geometry.g, learner.theta(), n=1)
    assert found.monotone
    assert found.symmetric
    assert (found.smallest, found.largest) == pytest.approx((1, 1), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("d", "rank"), [(6, 3), (100, 99), (200, 100)])
def test_a_singular_map_is_never_called_increasing_nor_given_a_pair_of_points(d, rank, dtype):
    for seed in range(10):
        random = torch.Generator().manual_seed(seed)
        root = torch.randn(d, rank, generator=random, dtype=torch.float64)
        matrix = (root @ root.T / d).to(dtype)
        g = Linear(lambda z, matrix=matrix: {"w": matrix @ z["w"]})
        found = certify(g, {"w": torch.zeros(d, dtype=dtype)}, n=1)
        assert found.monotone is None
        assert found.counterexample is None


@pytest.mark.parametrize("slope", [-7.8e-16, 0.0, 7.8e-16])
def test_a_slope_that_is_zero_within_rounding_neither_refutes_nor_proves(slope):
    g = Linear(lambda z: {"w": torch.tensor([slope, 1.0, 2.0], dtype=torch.float64) * z["w"]})
    found = certify(g, {"w": torch.zeros(3, dtype=torch.float64)}, n=1)
    assert found.smallest == pytest.approx(slope, abs=1e-15)
    assert found.monotone is None
    assert found.counterexample is None


def test_a_negative_slope_above_rounding_refutes_at_every_scale():
    for scale in (1e-20, 1.0, 1e20):
        rates = scale * torch.tensor([-1e-9, 1.0, 2.0], dtype=torch.float64)
        g = Linear(lambda z, rates=rates: {"w": rates * z["w"]})
        found = certify(g, {"w": torch.zeros(3, dtype=torch.float64)}, n=1)
        assert found.monotone is False
        assert found.counterexample is not None


def test_a_small_slope_is_not_called_zero_for_want_of_digits():
    rates = torch.tensor([1e-4, 2.0])
    assert certify(Diagonal({"w": rates}), {"w": torch.zeros(2)}).monotone is None
    found = certify(Diagonal({"w": rates.double()}), {"w": torch.zeros(2, dtype=torch.float64)})
    assert found.monotone is True


def test_a_little_skew_is_seen_in_single_precision():
    random = torch.Generator().manual_seed(0)
    root = torch.randn(50, 50, generator=random)
    matrix = torch.eye(50) + 1e-3 * (root - root.T)
    g = Linear(lambda z: {"w": matrix @ z["w"]})
    found = certify(g, {"w": torch.zeros(50)}, n=1)
    assert not found.symmetric
    assert found.monotone


@pytest.mark.slow
@pytest.mark.parametrize("method", ["blockiaf", "gradnet"])
def test_certify_takes_at_most_a_minute_on_conv4_with_64_filters(method):
    torch.manual_seed(0)
    learner = mm.make_learner(method, mm.models.Conv4())
    assert sum(p.numel() for p in learner.theta().values()) == 121_093
    # Processor time: what else the machine does must not decide a test.
    began = time.process_time()
    found = certify(randomised(learner.geometry.g, 0.01).float(), learner.theta(), n=4)
    assert time.process_time() - began < 60
    assert found.points == 4
    assert found.symmetric == (method == "gradnet")
