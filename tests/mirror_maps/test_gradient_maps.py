"""Maps that are mirror maps by construction: what is claimed of them, far from their start."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import metamirror as mm
from metamirror.core.adjoints import Detached
from metamirror.core.inner_loop import descend
from metamirror.linalg.parametrisation import MIXING_SPEED, SPEED
from metamirror.linalg.tensor_stacks import flat
from metamirror.mirror_maps import (
    Diagonal,
    Elementwise,
    GradientNet,
    Identity,
    KroneckerMetric,
    Linear,
    bregman,
)
from metamirror.mirror_maps.bounded_metric import bounded
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.testing import check_mirror_map
from metamirror.testing.maps import check_inverse, check_jacobian, jacobian
from metamirror.testing.networks import smooth_mlp
from tests.mirror_maps.maps import (
    FLOWS,
    GRADIENT_MAPS,
    QUADRATIC_MAPS,
    RANGE,
    SHAPES,
    factors,
    point,
    randomised,
    rates,
)
from tests.networks import point_tasks

gradient_maps = pytest.mark.parametrize("name", GRADIENT_MAPS)
all_maps = {**GRADIENT_MAPS, **QUADRATIC_MAPS, **FLOWS}
seeds = st.integers(0, 10_000)
sizes = st.sampled_from([0.1, 1.0, 10.0])


@pytest.mark.parametrize("name", all_maps)
def test_a_map_keeps_what_it_claims(name):
    torch.manual_seed(0)
    check_mirror_map(all_maps[name](), point())


def test_the_default_range_keeps_its_promises_too():
    check_mirror_map(GradientNet(point()), point())


@pytest.mark.parametrize("name", {**GRADIENT_MAPS, **QUADRATIC_MAPS})
@settings(max_examples=15, deadline=None)
@given(seed=seeds, size=sizes, where=sizes)
def test_slopes_and_inverse_hold_however_far_a_map_has_moved(name, seed, size, where):
    g = randomised(all_maps[name](), size, seed)
    z = point(seed + 1, where)
    check_jacobian(g, z)
    check_inverse(g, z)


@pytest.mark.parametrize("name", FLOWS)
@settings(max_examples=15, deadline=None)
@given(seed=seeds, size=st.sampled_from([0.03, 0.1, 0.3]))
def test_blockwise_substitution_inverts_a_flow(name, seed, size):
    check_inverse(randomised(FLOWS[name](), size, seed), point(seed + 1))


@gradient_maps
def test_it_starts_exactly_as_the_identity_and_alive(name):
    g = GRADIENT_MAPS[name]().double()
    z = point(3)
    assert all(torch.equal(g(z)[key], value) for key, value in z.items())
    weights = {n: p for n, p in g.named_parameters() if "weight" in n}
    assert weights
    grads = torch.autograd.grad(flat(g(z)).square().sum(), list(weights.values()))
    assert all(bool((grad != 0).any()) for grad in grads)


@pytest.mark.slow
@pytest.mark.parametrize("name", {**GRADIENT_MAPS, **QUADRATIC_MAPS})
def test_bregman_divergence_is_the_integral_of_the_mirror_map(name):
    g = randomised({**GRADIENT_MAPS, **QUADRATIC_MAPS}[name](), 0.5)
    phi, other = point(1, 0.5), point(2, 0.5)
    with torch.no_grad():
        found = float(bregman(g, phi, other))
        base = flat(g.inverse(other))
        direction = flat(phi) - flat(other)
        nodes, weights = _gauss_legendre(240)
        expected = 0.0
        for t, w in zip(nodes, weights, strict=True):
            between = {n: other[n] + t * (phi[n] - other[n]) for n in phi}
            expected += w * float((flat(g.inverse(between)) - base) @ direction)
        assert found == pytest.approx(expected, rel=1e-6)
        assert found > 0
        assert float(bregman(g, phi, phi)) == pytest.approx(0, abs=1e-10)


def _gauss_legendre(n: int) -> tuple[list[float], list[float]]:
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(n)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


def support():
    return mm.Batch(*(t[0] for t in point_tasks().support))


def adapted_by_map(g, z0) -> dict[str, torch.Tensor]:
    """Mirror descent with g on the smooth network, from the dual start z0."""
    learner = mm.Learner(smooth_mlp(), MirrorDescent(g, start="dual"), steps=4, lr=0.1)
    with torch.no_grad():
        for name, p in learner.theta().items():
            p.copy_(z0[name])
    return learner.adapt(support()).params


def own_shapes() -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in smooth_mlp().named_parameters()}


@pytest.mark.parametrize("form", ["diagonal", "elementwise", "gradnet"])
def test_maps_contain_metasgd_with_positive_rates(form):
    start = own_shapes()
    random = torch.Generator().manual_seed(0)
    log_rates = {
        name: torch.empty_like(p).uniform_(-1, 1, generator=random) for name, p in start.items()
    }
    metasgd = mm.make_learner("metasgd:positive=true", smooth_mlp(), steps=4, lr=0.1)
    with torch.no_grad():
        for name, rate in zip(metasgd.geometry.names, metasgd.geometry.rates, strict=True):
            rate.copy_(log_rates[name])
    if form == "diagonal":
        g = Diagonal({name: r.exp() for name, r in log_rates.items()})
    else:
        g = Elementwise(start) if form == "elementwise" else GradientNet(start, metric="diagonal")
        reach = g.log_range
        bounded = {n: reach / SPEED * torch.atanh(r / reach) for n, r in log_rates.items()}
        parameters = (
            g.scale if form == "elementwise" else [scaling.log_scale for scaling in g.scalings]
        )
        with torch.no_grad():
            for parameter, value in zip(parameters, g.groups.stack(bounded), strict=True):
                parameter.copy_(value)
    with torch.no_grad():
        found = adapted_by_map(g, g.inverse(start))
    for name, expected in metasgd.adapt(support()).params.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("form", ["quadratic", "gradnet"])
def test_maps_contain_positive_definite_metacurvature(form):
    start = own_shapes()
    g = GradientNet(start, log_range=RANGE)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scaling in g.scalings:
            for p in scaling.parameters():
                size = p.shape[-1] / MIXING_SPEED
                p.copy_(size * torch.randn(p.shape, generator=random, dtype=torch.float64))
    metacurvature = mm.make_learner("metacurvature", smooth_mlp(), steps=4, lr=0.1)
    geometry = metacurvature.geometry
    roots = {}
    with torch.no_grad():
        for names, parts, scaling in zip(
            geometry.groups.members.values(), geometry.factors, g.scalings, strict=True
        ):
            s = scaling.factors()
            for i, name in enumerate(names):
                if isinstance(s, torch.Tensor):
                    parts[0][i] = s[i].square()
                    roots[name] = [torch.diag(s[i])]
                else:
                    roots[name] = [f[i] for f in s]
                    for part, f in zip(parts, s, strict=True):
                        part[i] = f[i].T @ f[i]
        if form == "quadratic":
            shapes = {name: tuple(p.shape) for name, p in start.items()}
            g = KroneckerMetric(shapes, roots)
        found = adapted_by_map(g, g.inverse(start))
    for name, expected in metacurvature.adapt(support()).params.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-8, atol=1e-10)


def test_the_quadratic_of_the_identity_is_maml():
    found = adapted_by_map(Identity(), own_shapes())
    for name, expected in (
        mm.make_learner("maml", smooth_mlp(), steps=4, lr=0.1).adapt(support()).params.items()
    ):
        assert torch.equal(found[name], expected)


@pytest.mark.parametrize("name", {**GRADIENT_MAPS, **QUADRATIC_MAPS})
def test_primal_and_dual_forms_give_the_same_iterates(name):
    """Eq. (6), phi <- g(grad h(phi) - alpha grad L(phi)), against eq. (7)."""
    g = randomised({**GRADIENT_MAPS, **QUADRATIC_MAPS}[name](), 0.5)
    target = point(7)

    def loss(phi):
        return sum(((phi[n] - target[n]) ** 2).sum() / 2 for n in phi) + sum(
            torch.sin(phi[n]).sum() for n in phi
        )

    def gradient(phi):
        return {n: phi[n] - target[n] + torch.cos(phi[n]) for n in phi}

    geometry = MirrorDescent(g, start="dual")
    z0 = point(8)
    path = descend(
        lambda phi, phi0=None: (loss(phi),) * 2,
        geometry,
        geometry.begin(z0, geometry.prepare(None), {}),
        steps=6,
        lr=0.05,
        adjoint=Detached(),
        keep=True,
    )
    with torch.no_grad():
        phi = g(z0)
        for expected in path.points[1:]:
            grad = gradient(phi)
            phi = g({n: z - 0.05 * grad[n] for n, z in g.inverse(phi).items()})
            for n in phi:
                torch.testing.assert_close(phi[n], expected[n], rtol=0, atol=1e-9)


def test_bounds_hold_at_every_step_of_training():
    learner = mm.make_learner("gradnet", smooth_mlp(), steps=2, lr=0.1, log_range=0.5, rho=0.6)
    # A rate so large that parameters are thrown far from their start.
    optimizer = torch.optim.Adam(learner.parameters(), lr=1.0)
    g = learner.geometry.g
    m, largest = g.bounds()
    for _ in range(3):
        optimizer.zero_grad()
        learner.meta_loss(point_tasks()).backward()
        optimizer.step()
        found = mm.mirror_maps.certify(g, learner.theta(), n=1)
        assert found.symmetric
        assert m <= found.smallest <= found.largest <= largest


def test_current_bounds_are_reached():
    """Each part of a map at its limit: what bounds() says is then no more than what is so."""
    for sign, part in itertools.product((1, -1), ("layers", "coupling")):
        g = GradientNet({"w": torch.zeros(4, 4)}, units=4).double()
        with torch.no_grad():
            target = g.coupling if part == "coupling" else g.layers[0]
            target.weight.fill_(sign * 20.0)
        j = jacobian(g, {"w": torch.zeros(4, 4, dtype=torch.float64)})
        values = torch.linalg.eigvalsh(j)
        m, largest = g.bounds(current=True)
        reached = largest - float(values[-1]) if sign > 0 else float(values[0]) - m
        assert reached == pytest.approx(0, abs=1e-9)
        assert abs(largest - 1) + abs(m - 1) > 0.25


@pytest.mark.parametrize("make", [Elementwise, GradientNet])
def test_the_slowest_map_that_the_bounds_admit_is_inverted(make):
    """All weights at -rho, near the centre of every tanh: the iteration contracts by rho only."""
    start = {"w": torch.zeros(4, 4, dtype=torch.float64)}
    g = make(start).double()
    with torch.no_grad():
        for name, p in g.named_parameters():
            if "weight" in name:
                p.fill_(-20.0)
            if "knot" in name:
                p.zero_()
        z = {"w": 1e-3 * torch.ones(4, 4, dtype=torch.float64)}
        back = g.inverse(g(z))
    torch.testing.assert_close(back["w"], z["w"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", GRADIENT_MAPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e4, 1e7, 1e30])
def test_bounds_hold_for_parameters_however_large(name, size, dtype):
    g = GRADIENT_MAPS[name]().to(dtype)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in g.parameters():
            p.copy_(size * torch.randn(p.shape, generator=random))
    j = jacobian(g, {n: p.to(dtype) for n, p in point(1).items()}).double()
    assert bool(torch.isfinite(j).all())
    values = torch.linalg.eigvalsh((j + j.T) / 2)
    m, largest = g.bounds()
    slack = 100 * torch.finfo(dtype).eps * largest
    assert m - slack <= float(values[0])
    assert float(values[-1]) <= largest + slack
    assert g.bounds(current=True)[1] <= largest + slack


def test_a_singular_metric_has_no_bounds_and_no_inverse():
    singular = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=torch.float64)
    g = KroneckerMetric({"w": (3, 2)}, {"w": [singular, torch.eye(2, dtype=torch.float64)]})
    assert g.bounds() is None
    with pytest.raises(ValueError, match="singular"):
        g.inverse({"w": torch.zeros(3, 2, dtype=torch.float64)})


def test_linear_maps_are_inverted_and_singular_ones_refused():
    random = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(20, 20, generator=random, dtype=torch.float64))[0]
    matrix = q @ torch.diag(torch.logspace(-3, 3, 20, dtype=torch.float64)) @ q.T
    z = {"w": torch.randn(20, generator=random, dtype=torch.float64)}
    back = Linear(lambda v: {"w": matrix @ v["w"]}).inverse({"w": matrix @ z["w"]})
    torch.testing.assert_close(back["w"], z["w"], rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="singular"):
        Linear(lambda v: {"w": 0 * v["w"]}).inverse(z)


def test_quadratic_maps_move_with_their_module():
    for g in (Diagonal(rates()), KroneckerMetric(SHAPES, factors())):
        assert g.state_dict()
        assert all(t.device.type == "meta" for t in g.to("meta").state_dict().values())


def test_a_mode_of_size_one_has_no_factor_to_learn():
    g = GradientNet({"w": torch.randn(8, 1, 3, 3), "s": torch.randn(())})
    assert all(max(p.shape[1:]) > 1 for n, p in g.named_parameters() if "matrices" in n)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GradientNet(point(), rho=1.0), "rho is 1.0"),
        (lambda: Elementwise(point(), rho=-0.1), "rho is -0.1"),
        (lambda: GradientNet(point(), coupling=0.95), "coupling is 0.95"),
        (lambda: GradientNet(point(), log_range=float("inf")), "log_range is inf"),
        (lambda: GradientNet(point(), log_range=1000.0), "log_range is 1000"),
        (lambda: GradientNet(point(), metric="round"), "metric is 'round'"),
        (lambda: KroneckerMetric({"w": (2, 2)}, {"w": [torch.eye(2)]}), "need one square matrix"),
        (lambda: KroneckerMetric({"w": (2, 2)}, {}), "need one square matrix"),
        (lambda: Diagonal({"w": torch.tensor([float("nan")])}).bounds(), "not finite"),
        (lambda: GradientNet(point(), terms=0), "terms is 0"),
        (lambda: Elementwise(point(), terms=0), "terms is 0"),
        (lambda: GradientNet(point(), modes={"a.weight": (5, 3)}), "do not hold"),
        (lambda: Diagonal({"w": torch.tensor([-1.0])}).inverse({"w": torch.ones(1)}), "not above"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("name", all_maps)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_point_that_is_not_finite_has_no_inverse(name, bad):
    phi = point()
    phi["a.bias"][1] = bad
    with pytest.raises(ValueError, match=r"a\.bias is not finite"):
        all_maps[name]().double().inverse(phi)


@pytest.mark.parametrize("name", [n for n in all_maps if n != "identity"])
def test_a_point_with_other_parameters_has_no_inverse(name):
    g = all_maps[name]().double()
    with pytest.raises(ValueError, match=r"a\.bias"):
        g.inverse({n: p for n, p in point().items() if n != "a.bias"})
    wrong = {**point(), "a.bias": torch.zeros(5, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"a\.bias has shape"):
        g.inverse(wrong)


def test_shapes_are_covered():
    assert set(SHAPES) == set(point()) == set(rates()) == set(factors())


@pytest.mark.parametrize("reach", [0.01, 0.1, 1.0, 5.0])
def test_the_kronecker_factors_reach_every_matrix_within_their_bounds_and_no_other(reach):
    random = torch.Generator().manual_seed(0)
    eye = torch.eye(5, dtype=torch.float64)
    for size in (1e-6, 0.1, 1.0, 30.0):
        a = torch.randn(3, 5, 5, generator=random, dtype=torch.float64) * size
        a = (a + a.mT) / 2
        f = bounded(a, reach)
        values = torch.linalg.eigvalsh(f)
        assert float(values.min()) >= math.exp(-reach) * (1 - 1e-9)
        assert float(values.max()) <= math.exp(reach) * (1 + 1e-9)
        torch.testing.assert_close(f, f.mT)
        torch.testing.assert_close(bounded(-a, reach) @ f, eye.expand_as(f))
        single = torch.linalg.svdvals(bounded(a.float(), reach).double()).log()
        assert float(single.abs().max()) <= 1.01 * reach
    # From the first step on, every entry counts in full.
    small = torch.full((5, 5), 1e-6, dtype=torch.float64)
    torch.testing.assert_close(bounded(small, reach) - eye, small, rtol=1e-4, atol=0)
    # The roots of f(x) = y between the extremes, for eigenvalues y of a matrix that is wanted.
    wanted = torch.linspace(-0.99, 0.99, 5, dtype=torch.float64).mul(reach).exp()
    q = (4 * math.tanh(reach / 2)) ** 2
    half = q / 4 * (wanted + 1) / (wanted - 1)
    roots = half - half.sign() * (half.square() - q).clamp_min(0).sqrt()
    roots = torch.where((wanted - 1).abs() < 1e-12, torch.zeros_like(roots), roots)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=random, dtype=torch.float64))[0]
    a = (rotation * roots) @ rotation.T
    assert float(a.abs().max()) < 4
    found = bounded(4 * torch.atanh(a / 4), reach)
    torch.testing.assert_close(found, (rotation * wanted) @ rotation.T, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 64])
@pytest.mark.parametrize("reach", [0.0005, 0.01, 5.0])
def test_the_kronecker_factors_keep_a_small_reach_however_large_their_argument(reach, n, dtype):
    """Of rank one: what rounding leaves of its square in all other directions is beside q."""
    random = torch.Generator().manual_seed(0)
    signs = torch.randn(n, 1, generator=random, dtype=torch.float64).sign()
    for size in (3.9, 1e3):
        f = bounded((size * signs @ signs.T).to(dtype), reach).double()
        values = torch.linalg.svdvals(f).log()
        assert float(values.abs().max()) <= 1.01 * reach


def test_a_kronecker_metric_without_reach_is_the_identity_and_too_much_is_refused():
    g = GradientNet(point(), metric="kronecker", log_range=0.0)
    with torch.no_grad():
        for p in g.scalings.parameters():
            p.normal_()
        for name, phi in g(point(1)).items():
            torch.testing.assert_close(phi, point(1)[name])
    with pytest.raises(ValueError, match="log_range is 21"):
        GradientNet(point(), metric="kronecker", log_range=21.0)
