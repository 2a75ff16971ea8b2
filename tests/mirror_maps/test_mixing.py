"""Linear maps inside a flow, and maps one after the other."""

import pytest
import torch

import metamirror as mm
from metamirror.linalg.tensor_stacks import flat
from metamirror.mirror_maps import BlockIAF, Composition, Diagonal, KroneckerMixing
from metamirror.testing import check_mirror_map
from metamirror.testing.maps import jacobian
from tests.mirror_maps.maps import SHAPES, point, randomised

STACKS = {
    "mixing": lambda: KroneckerMixing(SHAPES),
    "mixing in other modes": lambda: KroneckerMixing(SHAPES, {"a.weight": (2, 2, 3)}),
    "mixing and flow": lambda: Composition([KroneckerMixing(SHAPES), BlockIAF(SHAPES)]),
    "two flows": lambda: Composition([BlockIAF(SHAPES), BlockIAF(SHAPES, reverse=True)]),
}


@pytest.mark.parametrize("name", STACKS)
def test_it_starts_as_the_identity_and_is_inverted_far_from_it(name):
    g, z = STACKS[name]().double(), point(3)
    assert all(torch.equal(g(z)[key], value) for key, value in z.items())
    back = g.inverse(randomised(g, 0.1)(z))
    for key, value in z.items():
        torch.testing.assert_close(back[key], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", STACKS)
def test_it_keeps_what_a_mirror_map_promises(name):
    check_mirror_map(randomised(STACKS[name](), 0.02), point(1))


@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_mixing_has_an_inverse_whatever_is_learned(size):
    """A triangular factor with ones on its diagonal has determinant one, whatever it holds."""
    g = randomised(KroneckerMixing({"w": (3, 2)}), size)
    factors = [factor for stack in g.prepare()["factors"] for factor in stack]
    diagonals = [
        torch.tanh(32 / 3 / v.shape[-1] * v.diagonal(dim1=-2, dim2=-1)).mul(3).sum(-1)
        for v in g.entries[0]
    ]
    for factor, log in zip(factors, diagonals, strict=True):
        torch.testing.assert_close(torch.linalg.det(factor), log.exp(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [10.0, 300.0, 1e4])
def test_an_inverse_that_single_precision_cannot_have_is_refused(size):
    g = KroneckerMixing({"w": (2, 2)})
    with torch.no_grad():
        for p in g.parameters():
            p.fill_(size)
    with pytest.raises(ValueError, match=r"cannot be inverted in torch\.float32.*use float64"):
        g.inverse({"w": torch.ones(2, 2)})


def test_a_mixing_leaves_vectors_alone_and_mixes_no_two_tensors():
    g, z = randomised(KroneckerMixing(SHAPES), 0.1), point(2)
    phi = g(z)
    assert torch.equal(phi["a.bias"], z["a.bias"])
    first = z["a.weight"].numel()
    j = jacobian(g, z)
    assert j[:first, :first].count_nonzero() == first * first
    assert not j[:first, first:].any()


def test_every_entry_of_a_mixing_is_learned_from_the_first_step():
    g, z = KroneckerMixing(SHAPES).double(), point(4)
    weights = torch.randn(flat(z).shape, dtype=torch.float64)
    grads = torch.autograd.grad(weights @ flat(g(z)), list(g.parameters()))
    assert all(bool((grad != 0).all()) for grad in grads)


def test_two_flows_couple_blocks_in_both_directions():
    g, z = randomised(STACKS["two flows"](), 0.1), point(5)
    first = sum(z[name].numel() for name in ("a.weight", "a.bias"))
    j = jacobian(g, z)
    assert j[:first, first:].any()
    assert j[first:, :first].any()


def test_a_composition_applies_its_maps_in_order():
    double, flow = (
        Diagonal({name: 2 * torch.ones_like(t) for name, t in point().items()}),
        BlockIAF(SHAPES),
    )
    g = randomised(Composition([double, flow]), 0.0)
    for name, value in g(point(6)).items():
        torch.testing.assert_close(value, 2 * point(6)[name])


def test_the_options_build_them():
    model = mm.models.MLP(3, 2, hidden=(4,))
    mixed = mm.make_learner("blockiaf:mixing=kronecker:flows=2", model).geometry.g
    kinds = [type(one).__name__ for one in mixed.maps]
    assert kinds == ["KroneckerMixing", "BlockIAF"] * 2
    assert mixed.maps[3].partition.blocks == mixed.maps[1].partition.blocks[::-1]
    with pytest.raises(ValueError, match="flows is 0; it must lie between 1 and 16"):
        mm.make_learner("blockiaf:flows=0", model)
