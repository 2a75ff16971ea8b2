"""The fast passes of blockIAF and of gradient networks against the plain equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metamirror.linalg.kronecker import KroneckerLinear
from metamirror.linalg.tensor_stacks import flat
from metamirror.mirror_maps import BlockIAF, GradientNet, MirrorMap
from tests.mirror_maps.maps import PARTITIONS, SHAPES, TABLE, point, randomised


def derivatives(g: MirrorMap, shapes, seed: int) -> dict[str, Tensor]:
    """phi, and the first and second derivatives in z and in every parameter, along random vectors.

    A vector for the second derivative that is zero in most parameters would hide the others.
    """
    z = {name: value.requires_grad_() for name, value in point(seed, shapes=shapes).items()}
    wanted = {**z, **dict(g.named_parameters())}
    random = torch.Generator().manual_seed(seed)
    phi = flat(g(z))
    cotangent = torch.randn(phi.shape, generator=random, dtype=torch.float64)
    first = torch.autograd.grad(
        phi @ cotangent, list(wanted.values()), create_graph=True, materialize_grads=True
    )
    product = sum(
        (grad * torch.randn(grad.shape, generator=random, dtype=torch.float64)).sum()
        for grad in first
    )
    second = torch.autograd.grad(product, list(wanted.values()), materialize_grads=True)
    found = {"phi": phi}
    for order, grads in (("first", first), ("second", second)):
        found |= {f"{order}: {name}": d for name, d in zip(wanted, grads, strict=True)}
    return {name: value.detach() for name, value in found.items()}


def assert_plain_and_fast_agree(g: MirrorMap, shapes) -> None:
    g.fast = True
    fast = derivatives(g, shapes, 1)
    g.fast = False
    plain = derivatives(g, shapes, 1)
    for name, expected in plain.items():
        scale = 1 + float(expected.abs().max())
        torch.testing.assert_close(fast[name], expected, rtol=0, atol=1e-10 * scale, msg=name)
    # Not by being zero.
    assert any(value.any() for name, value in plain.items() if name.startswith("second"))


shapes_of_the_table = pytest.mark.parametrize("shapes", TABLE.values(), ids=TABLE)


@shapes_of_the_table
@pytest.mark.parametrize(
    ("scale", "heads", "extra_relu"),
    [
        ("bounded", "one zero factor", True),
        ("logistic", "random", False),
        ("exponential", "all zero factors", True),
    ],
    ids=["live", "paper", "released"],
)
@pytest.mark.parametrize("blocks", PARTITIONS)
def test_the_fast_block_iaf_equals_its_equations(shapes, scale, heads, extra_relu, blocks):
    torch.manual_seed(0)
    options = {"scale": scale, "heads": heads, "extra_relu": extra_relu}
    g = randomised(BlockIAF(shapes, blocks=PARTITIONS[blocks](shapes), **options), 0.1)
    assert_plain_and_fast_agree(g, shapes)


def test_the_fast_block_iaf_of_single_numbers_equals_its_equations():
    g = randomised(BlockIAF(SHAPES, blocks="index"), 0.1)
    assert len(g.partition.blocks) == 43
    assert_plain_and_fast_agree(g, SHAPES)


NETS = {
    "coupled": {},
    "uncoupled, two terms": {"coupled": False, "terms": 2},
    "Kronecker metric": {"metric": "kronecker"},
    "Kronecker metric, two terms": {"metric": "kronecker", "terms": 2},
    "folded": {},
}
FOLDED = {
    "small": {"b.weight": (6, 4)},
    "conv": {"head.weight": (5, 8, 5)},
    "mlp": {"b.weight": (40, 8, 5)},
}


@pytest.mark.parametrize("table", TABLE)
@pytest.mark.parametrize("name", NETS)
def test_the_fast_gradient_network_equals_its_equation(table, name):
    modes = FOLDED[table] if name == "folded" else None
    torch.manual_seed(0)
    g = GradientNet(point(0, shapes=TABLE[table]), modes=modes, **NETS[name])
    assert_plain_and_fast_agree(randomised(g, 0.3), TABLE[table])


@pytest.mark.parametrize("fast", [True, False])
def test_the_switch_is_an_argument_and_loads_the_same_parameters(fast):
    torch.manual_seed(0)
    for make in (BlockIAF, GradientNet):
        given = SHAPES if make is BlockIAF else point()
        g, other = make(given, fast=fast), make(given)
        assert g.fast is fast
        assert bool(g.prepare()) is fast
        g.load_state_dict(other.state_dict())
        z = {name: value.float() for name, value in point(1).items()}
        if make is GradientNet:
            z = point(1)
        torch.testing.assert_close(g(z), other(z))


def test_a_kronecker_layer_is_the_matrix_of_its_factors():
    """The one check that shares no product with the library."""
    torch.manual_seed(0)
    layer = KroneckerLinear(2, (4, 3, 2), (2, 5, 1)).double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    for i in range(2):
        first, second, third = (factor[i] for factor in layer.factors)
        matrix = torch.kron(torch.kron(first, second), third)
        expected = matrix @ x.flatten() + layer.bias[i].flatten()
        torch.testing.assert_close(layer(x, i).flatten(), expected)


MAPS = {"blockIAF": lambda: BlockIAF(SHAPES), "gradnet": lambda: GradientNet(point())}
maps = pytest.mark.parametrize("name", MAPS)


@maps
def test_points_under_vmap_are_those_one_by_one(name):
    """Values and gradients, with points that differ, points that do not, and maps that differ."""
    g = randomised(MAPS[name](), 0.2)
    each = [point(seed) for seed in range(3)]
    stacked = {n: torch.stack([z[n] for z in each]) for n in SHAPES}
    stacked["a.bias"] = each[0]["a.bias"]
    dims = {n: None if n == "a.bias" else 0 for n in SHAPES}
    cotangent = torch.randn(3, flat(each[0]).numel(), dtype=torch.float64)
    parameters = list(g.parameters())
    found = torch.func.vmap(lambda z: flat(g(z)), in_dims=(dims,))(stacked)
    expected = torch.stack([flat(g({**z, "a.bias": each[0]["a.bias"]})) for z in each])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        *(
            torch.autograd.grad((v * cotangent).sum(), parameters, materialize_grads=True)
            for v in (found, expected)
        ),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    own = {n: torch.stack([p, 2 * p]) for n, p in g.named_parameters()}
    found = torch.func.vmap(lambda p: flat(torch.func.functional_call(g, p, (each[0],))))(own)
    torch.testing.assert_close(found[0], flat(g(each[0])), rtol=1e-12, atol=1e-12)


@maps
def test_a_pass_can_be_differentiated_twice_and_forwards(name):
    g = randomised(MAPS[name](), 0.2)
    z, v, w = point(1), point(2), point(3)
    leaf = {n: t.clone().requires_grad_() for n, t in z.items()}
    parameters = [*leaf.values(), *g.parameters()]
    slope = torch.autograd.grad(flat(g(leaf)) @ flat(w), list(leaf.values()), create_graph=True)
    product = sum((s * v[n]).sum() for n, s in zip(leaf, slope, strict=True))
    found = torch.autograd.grad(product, parameters, materialize_grads=True)
    torch.testing.assert_close(
        product, flat(torch.func.jvp(g, (z,), (v,))[1]) @ flat(w), rtol=1e-10, atol=1e-12
    )
    step = 1e-6

    def gradients(distance: float) -> list[Tensor]:
        there = {n: (t + distance * v[n]).requires_grad_() for n, t in z.items()}
        wanted = [*there.values(), *g.parameters()]
        value = flat(g(there)) @ flat(w)
        return list(torch.autograd.grad(value, wanted, materialize_grads=True))

    for exact, above, below in zip(found, gradients(step), gradients(-step), strict=True):
        torch.testing.assert_close(exact, (above - below) / (2 * step), rtol=0, atol=1e-5)
