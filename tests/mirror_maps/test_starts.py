"""Primal starts, which no map moves, and dual ones."""

from __future__ import annotations

import pytest
import torch

import metamirror as mm
from metamirror.core.adjoints import Detached
from metamirror.core.inner_loop import descend
from metamirror.mirror_maps import BlockIAF
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from tests.mirror_maps.maps import GRADIENT_MAPS, SHAPES, point, randomised

STANDARD = {"parametrisation": "standard", "scale": "bounded"}
MAPS = {
    "blockiaf": lambda: BlockIAF(SHAPES),
    "blockiaf, standard": lambda: BlockIAF(SHAPES, **STANDARD),
    **GRADIENT_MAPS,
}
maps = pytest.mark.parametrize("name", MAPS)


def lower(phi, phi0=None):
    return (sum((p - 1).square().sum() + torch.sin(p).sum() for p in phi.values()),) * 2


def gradient(phi):
    return {n: 2 * (p - 1) + torch.cos(p) for n, p in phi.items()}


def path_from(geometry: MirrorDescent, prepared):
    with torch.no_grad():
        start = geometry.begin(point(8), prepared, {})
    return descend(lower, geometry, start, steps=4, lr=0.05, adjoint=Detached(), keep=True).points


@maps
@pytest.mark.parametrize("shared", [True, False], ids=["start prepared", "start not prepared"])
def test_the_path_is_that_of_the_map_less_a_constant(name, shared):
    g = randomised(MAPS[name](), 1.0, 3)
    geometry = MirrorDescent(g)
    with torch.no_grad():
        prepared = geometry.prepare(point(8) if shared else None)
        z0 = z = point(8)
        first = g(z0)
        found = path_from(geometry, prepared)
        for expected in found:
            phi = {n: g(z)[n] - first[n] + z0[n] for n in z}
            for n in phi:
                torch.testing.assert_close(expected[n], phi[n], rtol=1e-12, atol=1e-12)
            z = {n: z[n] - 0.05 * g_n for (n, g_n) in gradient(phi).items()}
    assert len(found) == 5


@maps
def test_no_map_moves_the_start(name):
    g = randomised(MAPS[name](), 2.0, 5)
    geometry = MirrorDescent(g)
    state = geometry.begin(point(1), geometry.prepare(None), {})
    for n, phi in geometry.primal(state).items():
        assert torch.equal(phi, point(1)[n])
    free = MirrorDescent(g, start="dual")
    moved = free.primal(free.begin(point(1), free.prepare(None), {}))
    assert any(not torch.allclose(moved[n], p) for n, p in point(1).items())


@maps
def test_what_only_adds_a_constant_is_not_learned(name):
    """All of it, and nothing else: every other parameter bends or tilts the map."""
    g = randomised(MAPS[name](), 1.0, 7)
    constants = {id(p) for p in g.constants()}
    one, other = g(point(1)), g(point(2))
    distance = sum((one[n] - other[n]).square().sum() for n in one)
    learned = list(g.parameters())
    grads = torch.autograd.grad(distance, learned, allow_unused=True)
    for p, grad in zip(learned, grads, strict=True):
        still = grad is None or float(grad.abs().max()) < 1e-12
        if id(p) in constants:
            assert still
        # The units of a flow are ReLUs, of which some rest.
        elif "blockiaf" not in name:
            assert not still
    MirrorDescent(g)
    assert {id(p) for p in g.parameters() if not p.requires_grad} == constants


def test_the_shifts_of_every_block_of_a_flow_are_constants():
    assert not BlockIAF(SHAPES).constants()
    g = BlockIAF(SHAPES, **STANDARD)
    names = {id(p): name for name, p in g.named_parameters()}
    found = {names[id(p)] for p in g.constants()}
    assert found == {n for n in names.values() if n.endswith("mu.bias") or "first_mu" in n}
    # One number for every parameter: no block is left out.
    assert sum(p.numel() for p in g.constants()) == sum(p.numel() for p in point().values())


@pytest.mark.parametrize("method", ["gradnet", "blockiaf"])
def test_an_adapted_model_is_no_part_of_the_learner(method):
    learner = mm.make_learner(method, mm.models.MLP(3, 2, hidden=(4,)), steps=2)
    support = mm.Batch(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    unadapted = learner.adapt(support, steps=0)
    first, *_ = learner.adaptations(support)
    path = learner.adapt(support, keep=True).path
    held = [unadapted.params, first.params, path.points[0]]
    before = [{n: p.clone() for n, p in params.items()} for params in held]
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(1.0)
    for params, old in zip(held, before, strict=True):
        for name, p in params.items():
            assert torch.equal(p, old[name])
            assert not p.requires_grad


def test_the_option_reaches_the_learner():
    model = mm.models.MLP(3, 2, hidden=(4,))
    for method in ("gradnet", "blockiaf"):
        assert mm.make_learner(method, model).geometry.start == "primal"
        assert mm.make_learner(f"{method}:start=dual", model).geometry.start == "dual"
        assert mm.make_learner(method, model, start="dual").geometry.start == "dual"
    for variant in ("paper", "released"):
        own = f"blockiaf:variant={variant}"
        assert mm.make_learner(own, model).geometry.start == "dual"
        assert mm.make_learner(f"{own}:start=primal", model).geometry.start == "primal"


def test_a_start_is_one_of_two_and_stays_what_it_was_built_as():
    with pytest.raises(ValueError, match="start is 'duel'; choose 'primal' or 'dual'"):
        MirrorDescent(BlockIAF(SHAPES), start="duel")
    learner = mm.make_learner("blockiaf", mm.models.MLP(3, 2, hidden=(4,)))
    with pytest.raises(ValueError, match="give it to make_learner"):
        learner.configure(start="dual")


def test_only_mirror_maps_have_a_dual_start():
    model = mm.models.MLP(3, 2, hidden=(4,))
    assert mm.make_learner("metasgd:start=primal", model).settings.start == "primal"
    with pytest.raises(ValueError, match="metasgd has no mirror map"):
        mm.make_learner("metasgd:start=dual", model)
    with pytest.raises(ValueError, match="start is 'middle'; choose from primal, dual"):
        mm.make_learner("blockiaf", model, start="middle")
