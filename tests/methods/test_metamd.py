"""MetaMD against its formulas, and its limits: MetaSGD, and MAML."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import metamirror as mm
from metamirror.core.mirror_map import inner
from metamirror.mirror_maps import Power, bregman
from metamirror.mirror_maps.base import spread
from metamirror.testing import check_mirror_map
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from tests.core.test_naive import naive_loss
from tests.mirror_maps.maps import point, randomised
from tests.networks import NETWORKS, point_tasks, shaken

STEPS, LR = 3, 0.1


def naive_map(learner: mm.Learner, units: dict[str, float]):
    """phi = sign(z) (eps / r) [(1 + |z| / (q eps))^r - 1], number by number."""
    g = learner.geometry.g
    powers = [1.0] * len(units) if g.powers is None else 3.0 ** torch.tanh(10 * g.powers / _log3())

    def primal(z: dict[str, Tensor]) -> dict[str, Tensor]:
        phi = {}
        for (name, value), a, r in zip(z.items(), g.rates, powers, strict=True):
            x = torch.exp(3 * torch.tanh(10 * a / 3)) * value
            raised = (1 + x.abs() / units[name]) ** r - 1
            phi[name] = torch.where(x > 0, raised, -raised) * units[name] / r
        return phi

    return primal


def _log3() -> Tensor:
    return torch.tensor(3.0, dtype=torch.float64).log()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("form", ["diagonal", "pnorm"])
def test_meta_gradient_equals_a_naive_program(form: str, network: str):
    make, make_tasks = NETWORKS[network]
    units = {name: spread(p) for name, p in make().named_parameters()}
    learner = shaken(mm.make_learner("metamd", make(), form=form, steps=STEPS, lr=LR))
    tasks = make_tasks()
    g, theta = naive_map(learner, units), dict(learner.model.named_parameters())
    image, total = g(theta), torch.zeros((), dtype=torch.float64)
    for x, y in zip(*tasks.support, strict=True):
        z, phi = theta, theta
        for _ in range(STEPS):
            loss = naive_loss(learner, phi, x, y)
            grads = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
            z = {n: value - LR * g for (n, value), g in zip(z.items(), grads, strict=True)}
            phi = {n: value - image[n] + theta[n] for n, value in g(z).items()}
            total = total + naive_loss(learner, phi, x, y) / STEPS / len(tasks.support.x)
    torch.testing.assert_close(learner.meta_loss(tasks), total, rtol=1e-11, atol=0)
    names, parameters = zip(*learner.named_parameters(), strict=True)
    expected = torch.autograd.grad(total, parameters)
    found = meta_gradient(learner, tasks)
    assert relative_difference(found, dict(zip(names, expected, strict=True))) < 1e-10


@pytest.mark.parametrize("form", ["diagonal", "pnorm"])
def test_with_powers_of_two_it_follows_metasgd_with_positive_rates(form: str):
    support = mm.Batch(*(t[0] for t in point_tasks().support))
    metamd = mm.make_learner("metamd", smooth_mlp(), form=form, steps=STEPS, lr=LR)
    metasgd = mm.make_learner("metasgd:positive=true", smooth_mlp(), steps=STEPS, lr=LR)
    with torch.no_grad():
        torch.manual_seed(0)
        for ours, theirs in zip(metamd.geometry.g.rates, metasgd.geometry.rates, strict=True):
            ours.normal_(0, 0.1)
            theirs.copy_(3 * torch.tanh(10 / 3 * ours))
    found, expected = metamd.adapt(support), metasgd.adapt(support)
    for name, phi in expected.params.items():
        torch.testing.assert_close(found.params[name], phi, rtol=0, atol=1e-12)
    maml = mm.make_learner("maml", smooth_mlp(), steps=STEPS, lr=LR).adapt(support)
    assert float((maml.params["head.weight"] - found.params["head.weight"]).abs().max()) > 1e-3


@pytest.mark.parametrize("form", ["diagonal", "pnorm"])
def test_the_query_set_has_no_part_in_it(form: str):
    learner = shaken(mm.make_learner("metamd", smooth_mlp(), form=form, steps=STEPS, lr=LR))
    tasks = point_tasks()
    other = mm.Task(tasks.support, mm.Batch(tasks.query.x + 3, tasks.query.y.flip(1)))
    assert relative_difference(meta_gradient(learner, other), meta_gradient(learner, tasks)) == 0
    accuracies = [learner.task_losses(one).score for one in (tasks, other)]
    assert not torch.equal(*accuracies)


def test_without_a_learned_start_the_geometry_learns_as_with_one():
    tasks = point_tasks()
    both, alone = (
        meta_gradient(
            shaken(mm.make_learner("metamd", smooth_mlp(), learn_start=flag, steps=STEPS, lr=LR)),
            tasks,
        )
        for flag in (True, False)
    )
    for name, grad in alone.items():
        expected = both[name] if name.startswith("geometry.") else torch.zeros_like(grad)
        torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-16)
        assert float(both[name].abs().max()) > 0


@pytest.mark.parametrize("powers", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_its_map_is_what_it_says(powers: bool, seed: int):
    check_mirror_map(randomised(Power(point(), powers=powers), 0.2, seed), point(seed + 1))


def test_its_primal_steps_are_those_of_the_bregman_divergence():
    """phi minimises alpha <grad, phi> + D_h(phi, phi'), eq. (6): nothing near it is smaller."""
    g = randomised(Power(point()), 0.1)
    before, grad = g(point(1)), point(2)
    z = {name: value - 0.1 * grad[name] for name, value in g.inverse(before).items()}
    with torch.no_grad():
        after = g(z)

        def objective(phi):
            return 0.1 * inner(grad, phi) + bregman(g, phi, before)

        least = objective(after)
        for seed in range(5):
            near = {name: p + 0.01 * point(seed)[name] for name, p in after.items()}
            assert objective(near) > least


def test_zeros_move_too():
    """The slope at zero is the rate, where that of a pure power is zero or infinite."""
    g = Power({"w": torch.zeros(3)})
    with torch.no_grad():
        g.powers.fill_(0.5)
        g.rates[0].copy_(torch.tensor([-0.1, 0.0, 0.1]))
    slopes = torch.func.jacrev(lambda z: g({"w": z})["w"])(torch.zeros(3))
    expected = torch.exp(3 * torch.tanh(torch.tensor([-1.0, 0.0, 1.0]) / 3))
    torch.testing.assert_close(slopes.diagonal(), expected)


def test_far_from_zero_it_is_a_power():
    g = Power({"w": torch.ones(2).double()})
    with torch.no_grad():
        g.powers.fill_(0.02)
        r = float(g.prepare()["powers"])
        low, high = (float(g({"w": torch.full((2,), z).double()})["w"][0]) for z in (1e8, 1e9))
    assert high / low == pytest.approx(10**r, rel=1e-6)
    assert r > 1.2
