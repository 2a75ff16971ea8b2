"""The passes of blockIAF and of gradient networks against programs written from the equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metamirror.mirror_maps import BlockIAF, GradientNet, MirrorMap
from metamirror.testing.maps import flat
from tests.mirror_maps.maps import SHAPES, point, randomised

# Kernels of equal shape, modes of size one, vectors of several lengths, a scalar.
CONV = {
    "conv0.weight": (16, 1, 3, 3),
    "conv0.bias": (16,),
    "conv1.weight": (16, 16, 3, 3),
    "conv1.bias": (16,),
    "conv2.weight": (16, 16, 3, 3),
    "conv2.bias": (16,),
    "temperature": (),
    "head.weight": (5, 40),
    "head.bias": (5,),
}
MLP = {
    "a.weight": (40, 1),
    "a.bias": (40,),
    "b.weight": (40, 40),
    "c.weight": (1, 40),
    "c.bias": (1,),
}


def kronecker(factors: list[Tensor]) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for factor in factors:
        matrix = torch.kron(matrix, factor)
    return matrix


def member(groups, modules, name: str):
    for names, module in zip(groups.members.values(), modules, strict=True):
        if name in names:
            return module, names.index(name)
    raise KeyError(name)


def naive_block_iaf(g: BlockIAF, z: dict[str, Tensor], kind: str, extra_relu: bool):
    """Eq. (8) block by block and piece by piece, with explicit matrices."""
    sigma = {
        "bounded": lambda a: 2 / (1 + torch.exp(-a)),
        "logistic": lambda a: 1 / (1 + torch.exp(-a)),
        "exponential": torch.exp,
    }[kind]

    def layer(linear, i: int, x: Tensor) -> Tensor:
        return kronecker([f[i] for f in linear.factors]) @ x + linear.bias[i].reshape(-1)

    def encode(name: str, x: Tensor) -> Tensor:
        module, i = member(g.encoded, g.encoders, name)
        first, second, third = module.layers
        out = layer(third, i, layer(second, i, layer(first, i, x).relu()).relu())
        return out.relu() if extra_relu else out

    def decode(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        module, i = member(g.decoded, g.decoders, name)
        for linear in module.trunk:
            x = layer(linear, i, x).relu()
        return layer(module.alpha, i, x), layer(module.mu, i, x)

    pieces = {name: value.reshape(-1) for name, value in g.partition.split(z).items()}
    phi, embeddings = {}, []
    for i, block in enumerate(g.partition.blocks):
        if i > 0:
            given = g.connections[i - 1](torch.cat(embeddings))
            given = given.relu() if extra_relu else given
        for j, name in enumerate(block):
            if i == 0:
                alpha, mu = g.first_alpha[j].reshape(-1), g.first_mu[j].reshape(-1)
            else:
                size = math.prod(max(1, n // 8) for n in g.partition.pieces[name])
                read, given = given[:size], given[size:]
                alpha, mu = decode(name, read)
            phi[name] = pieces[name] * sigma(alpha) + mu
        if i + 1 < len(g.partition.blocks):
            embeddings += [encode(name, pieces[name]) for name in block]
    return g.partition.join(phi)


def naive_gradient_net(g: GradientNet, z: dict[str, Tensor]) -> dict[str, Tensor]:
    """The formula of `gradient_net`, tensor by tensor, with explicit matrices."""

    def normalised(factors, i: int, modes) -> Tensor:
        matrices = iter(factors.matrices)
        parts = []
        for n in modes:
            part = next(matrices)[i] if n > 1 else torch.ones(1, 1, dtype=torch.float64)
            parts.append(part / torch.linalg.matrix_norm(part, 2) if n > 1 else part)
        return kronecker(parts)

    def scaling(module, i: int) -> Tensor:
        s = module.prepare()
        if isinstance(s, Tensor):
            return torch.diag(s[i].reshape(-1))
        return kronecker([f[i] for f in s])

    found, bracket, parts = {}, {}, {}
    for group, (modes, names) in enumerate(g.groups.members.items()):
        width = getattr(g, f"width_{group}").reshape(-1)
        for i, name in enumerate(names):
            s = scaling(g.scalings[group], i)
            u = s @ z[name].reshape(-1)
            bracket[name] = u
            if len(modes) > 1:
                layer = g.layers[group]
                largest = (g.rho - g.coupling_rho) / g.terms
                for k in range(g.terms):
                    at = k * len(names) + i
                    a = normalised(layer.factors, at, modes)
                    tau, c = width[at], layer.offset[at].reshape(-1)
                    w = largest * torch.tanh(layer.weight[at].reshape(-1))
                    bracket[name] = bracket[name] + a.T @ (w * tau * torch.tanh((a @ u + c) / tau))
            found[name] = (s, g.shifts[group][i].reshape(-1))
            if g.coupling is not None:
                parts[name] = (normalised(g.coupling.encoders[group], i, modes), u)
    if g.coupling is not None:
        mixing = g.coupling.mixing / torch.linalg.matrix_norm(g.coupling.mixing, 2)
        tau = g.coupling_width
        order = [name for names in g.groups.members.values() for name in names]
        e = torch.cat([parts[name][0] @ parts[name][1] for name in order])
        omega = g.coupling_rho * torch.tanh(g.coupling.weight)
        hidden = omega * tau * torch.tanh((mixing @ e + g.coupling.offset) / tau)
        back = (mixing.T @ hidden).split([parts[name][0].shape[0] for name in order])
        for name, part in zip(order, back, strict=True):
            bracket[name] = bracket[name] + parts[name][0].T @ part
    return {
        name: (found[name][1] + found[name][0].T @ bracket[name]).reshape(value.shape)
        for name, value in z.items()
    }


def assert_same(g: MirrorMap, naive, z: dict[str, Tensor]) -> None:
    """Phi and the gradients in z and in every parameter."""
    z = {name: value.requires_grad_() for name, value in z.items()}
    cotangent = flat(point(9, shapes={name: tuple(p.shape) for name, p in z.items()}))
    names, parameters = zip(*g.named_parameters(), strict=True)
    wanted = [*z.values(), *parameters]
    phi, expected = flat(g(z)), flat(naive(z))
    torch.testing.assert_close(phi, expected, rtol=0, atol=1e-10)
    grads, naive_grads = (
        torch.autograd.grad(value @ cotangent, wanted, materialize_grads=True)
        for value in (phi, expected)
    )
    for name, a, b in zip((*z, *names), grads, naive_grads, strict=True):
        scale = 1 + float(b.abs().max())
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * scale, msg=name)


@pytest.mark.parametrize("shapes", [SHAPES, CONV, MLP], ids=["small", "conv", "mlp"])
@pytest.mark.parametrize(
    ("scale", "heads", "extra_relu"),
    [
        ("bounded", "one zero factor", True),
        ("logistic", "random", False),
        ("exponential", "all zero factors", True),
    ],
    ids=["live", "paper", "released"],
)
@pytest.mark.parametrize("blocks", ["layer", "tensor", "one", "alternating", "index"])
def test_block_iaf_equals_the_naive_program(shapes, scale, heads, extra_relu, blocks):
    if blocks == "one":
        blocks = [list(shapes)]
    elif blocks == "alternating":
        blocks = [list(shapes)[::2], list(shapes)[1::2]]
    elif blocks == "index":
        d = sum(math.prod(shape) for shape in shapes.values())
        blocks = [list(range(0, d, 2)), list(range(1, d, 2))] if d < 100 else "layer"
    torch.manual_seed(0)
    g = BlockIAF(shapes, blocks=blocks, scale=scale, heads=heads, extra_relu=extra_relu)
    g = randomised(g, 0.1)
    assert_same(g, lambda z: naive_block_iaf(g, z, scale, extra_relu), point(1, shapes=shapes))


NETS = {
    "coupled": {},
    "uncoupled, two terms": {"coupled": False, "terms": 2},
    "Kronecker metric": {"metric": "kronecker"},
    "Kronecker metric, two terms": {"metric": "kronecker", "terms": 2},
    "folded head": {"modes": {"head.weight": (5, 8, 5)}},
}


@pytest.mark.parametrize("shapes", [SHAPES, CONV, MLP], ids=["small", "conv", "mlp"])
@pytest.mark.parametrize("name", NETS)
def test_a_gradient_network_equals_the_naive_program(shapes, name):
    options = NETS[name]
    if "modes" in options and shapes is not CONV:
        options = {}
    torch.manual_seed(0)
    g = randomised(GradientNet(point(0, shapes=shapes), **options), 0.3)
    assert_same(g, lambda z: naive_gradient_net(g, z), point(1, shapes=shapes))


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
