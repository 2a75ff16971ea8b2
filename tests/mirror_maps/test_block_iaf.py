"""The paper's map: what it is, and what its Theorem 1 says that it is but is not."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import metamirror as mm
from metamirror.core.adjoints import Detached
from metamirror.core.inner_loop import descend
from metamirror.linalg.parametrisation import bounded_scale
from metamirror.linalg.tensor_stacks import flat
from metamirror.mirror_maps import BlockIAF, GradientNet, MirrorMap, Partition, certify
from metamirror.mirror_maps.block_iaf import SCALES
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.testing.maps import jacobian
from metamirror.testing.networks import smooth_conv
from tests.mirror_maps.maps import FLOWS, SHAPES, point, randomised, scales_of
from tests.networks import image_tasks

A = torch.tensor([[1.0, -0.9], [-0.9, 1.0]], dtype=torch.float64)


def counterexample() -> BlockIAF:
    """Two scalar blocks, sigma = logistic(0) = 1/2, mu_2 = 4 z_1 for z_1 > 0."""
    g = BlockIAF({"z": (2,)}, blocks="index", scale="logistic").double()
    with torch.no_grad():
        for p in g.parameters():
            p.zero_()
        for layer in (*g.encoders[0].layers, *g.decoders[0].trunk):
            layer.factors[0].fill_(1.0)
        g.connections[0].weight.fill_(1.0)
        g.decoders[0].mu.factors[0].fill_(4.0)
    return g


def quadratic(matrix):
    return lambda phi, phi0=None: ((phi["z"] @ matrix @ phi["z"] / 2),) * 2


def losses_of(g, matrix, z0, lr, steps):
    geometry = MirrorDescent(g, start="dual")
    state = geometry.begin({"z": z0}, geometry.prepare(None), {})
    return descend(
        quadratic(matrix), geometry, state, steps=steps, lr=lr, adjoint=Detached()
    ).losses


def test_the_counterexample_has_the_jacobian_of_the_text():
    expected = torch.tensor([[0.5, 0.0], [4.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(jacobian(counterexample(), {"z": expected[1]}), expected)
    inverse = torch.linalg.inv(expected)
    for matrix, ends in ((expected, [-1.5, 2.5]), (inverse, [-6.0, 10.0])):
        values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
        torch.testing.assert_close(values, torch.tensor(ends, dtype=torch.float64))
    assert sorted(torch.linalg.eigvals(A @ expected).real.tolist()) == pytest.approx(
        [-2.58, -0.018], abs=5e-3
    )


def test_block_iaf_need_not_increase():
    g = counterexample()
    z, other = (torch.tensor(v, dtype=torch.float64) for v in ([2.0, 0.0], [1.0, 1.0]))
    with torch.no_grad():
        product = (z - other) @ (g({"z": z})["z"] - g({"z": other})["z"])
    assert float(product) == pytest.approx(-3)


@pytest.mark.parametrize("lr", [1e-3, 1e-2, 1e-1, 1.0])
def test_mirror_descent_with_it_diverges_on_a_strongly_convex_quadratic(lr):
    """Along the eigenvector of AJ to -2.58 every step multiplies by 1 + 2.58 lr."""
    values, vectors = torch.linalg.eig(A @ torch.tensor([[0.5, 0.0], [4.0, 0.5]]).double())
    worst = int(values.real.argmin())
    assert float(values.real[worst]) == pytest.approx(-2.58, abs=5e-3)
    start = vectors.real[:, worst]
    losses = losses_of(counterexample(), A, start * start[0].sign(), lr, steps=int(4 / lr) + 4)
    assert bool((losses.diff() > 0).all())
    assert float(losses[-1]) > 100 * float(losses[0])


def test_a_gradient_network_converges_where_block_iaf_diverges():
    g = randomised(GradientNet({"z": torch.randn(2)}), 1.0)
    ell, (_, largest) = 1.9, g.bounds(current=True)
    start = torch.tensor([1.0, -1.155], dtype=torch.float64)
    losses = losses_of(g, A, start, 1.9 / (ell * largest), steps=1500)
    assert bool((losses.diff() <= 1e-15).all())
    # g has a shift: it reaches the minimiser 0 as well, not where it started from.
    assert float(losses[-1]) < 1e-6 * float(losses[0])


@pytest.mark.slow
def test_gradient_networks_converge_on_random_quadratics_for_every_admissible_step_size():
    """At least at the linear rate that the lemma gives: with |phi+ - phi| >= alpha m |G| and
    |G|^2 >= 2 mu L, each step multiplies L by 1 - 2 mu (1/(alpha M) - l/2) (alpha m)^2 at most."""
    steps = 150
    for seed in range(100):
        random = torch.Generator().manual_seed(seed)
        d = 4 + 2 * (seed % 3)
        start = torch.randn(d, generator=random, dtype=torch.float64)
        matrix = random_spd(d, random)
        mu, *_, ell = torch.linalg.eigvalsh(matrix).tolist()
        # A matrix of parameters, so that the hidden layers take part, and every kind of map.
        metric = ("diagonal", "kronecker")[seed % 2]
        shape = {"z": start.reshape(2, -1)}
        g = randomised(
            GradientNet(shape, units=8, rho=0.6, log_range=0.5, metric=metric), 1.0, seed
        )
        m, largest = g.bounds(current=True)
        share = (0.1, 0.5, 0.95, 0.99)[seed % 4]
        alpha = share * 2 / (ell * largest)
        losses = losses_of(Reshaped(g, shape["z"].shape), matrix, start, alpha, steps)
        rate = 1 - 2 * mu * (1 / (alpha * largest) - ell / 2) * (alpha * m) ** 2
        assert 0 <= rate < 1
        bound = losses[0] * rate ** torch.arange(steps, dtype=torch.float64)
        assert bool((losses.diff() <= 1e-14 * losses[0]).all()), seed
        assert bool((losses <= bound * (1 + 1e-9)).all()), seed
        assert float(losses[-1]) < 0.02 * float(losses[0]), seed


def random_spd(d: int, random: torch.Generator) -> torch.Tensor:
    """Eigenvalues from 0.5 to 2, in random directions."""
    q = torch.linalg.qr(torch.randn(d, d, generator=random, dtype=torch.float64))[0]
    values = 0.5 + 1.5 * torch.rand(d, generator=random, dtype=torch.float64)
    return q @ torch.diag(values) @ q.T


class Reshaped(MirrorMap):
    """A map of a matrix, seen as one of a vector."""

    def __init__(self, g: MirrorMap, shape: torch.Size):
        super().__init__()
        self.g, self.shape = g, shape

    def forward(self, z, prepared=None):
        return {"z": self.g({"z": z["z"].reshape(self.shape)})["z"].reshape(-1)}


def test_certify_refutes_the_counterexample_with_a_pair_of_points():
    g = counterexample()
    found = certify(g, {"z": torch.tensor([2.0, 0.0], dtype=torch.float64)}, n=1)
    assert found.smallest == pytest.approx(-1.5)
    assert found.largest == pytest.approx(2.5)
    assert found.asymmetry == pytest.approx(4)
    assert not found.monotone
    assert not found.symmetric
    pair = found.counterexample
    with torch.no_grad():
        moved = flat(pair.z) - flat(pair.other)
        product = float(moved @ (flat(g(pair.z)) - flat(g(pair.other))))
    assert product == pytest.approx(pair.product)
    assert product < 0


@pytest.mark.parametrize("name", FLOWS)
def test_jacobian_is_block_lower_triangular_with_the_scales_on_its_diagonal(name):
    g = randomised(FLOWS[name](), 0.1)
    z = point(5)
    j = jacobian(g, z)
    names = {
        n: torch.arange(flat(z).numel()).split([p.numel() for p in z.values()])[i]
        for i, n in enumerate(z)
    }
    if g.partition.indices is not None:
        blocks = list(g.partition.indices)
    else:
        blocks = [torch.cat([names[n] for n in block]) for block in g.partition.blocks]
    scales = scales_of(g, z)
    below = 0.0
    for a, b in itertools.product(range(len(blocks)), repeat=2):
        part = j[blocks[a]][:, blocks[b]]
        if a < b:
            assert not part.any()
        elif a == b:
            pieces = [scales[n].detach().reshape(-1) for n in g.partition.blocks[a]]
            torch.testing.assert_close(part, torch.diag(torch.cat(pieces)), rtol=1e-10, atol=1e-12)
        else:
            below += float(part.abs().sum())
    assert below > 0


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_tensors_of_every_order_are_mapped(order):
    shapes = {"first.weight": (3,) * order, "second.weight": (2,) * order}
    g = randomised(BlockIAF(shapes, blocks="tensor"), 0.3)
    z = point(1, shapes=shapes)
    assert {n: tuple(p.shape) for n, p in g(z).items()} == shapes
    with torch.no_grad():
        back = g.inverse(g(z))
    for n in z:
        torch.testing.assert_close(back[n], z[n], rtol=0, atol=1e-10)


def test_permuted_index_blocks_map_each_number_to_its_place():
    """Against a map of the permuted vector whose blocks stand in order."""
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    permuted = BlockIAF({"z": (7,)}, blocks=[order[:3].tolist(), order[3:].tolist()]).double()
    ordered = BlockIAF({"z": (7,)}, blocks=[[0, 1, 2], [3, 4, 5, 6]])
    ordered.load_state_dict(randomised(permuted, 0.1).state_dict())
    z = torch.randn(7, dtype=torch.float64)
    found = permuted({"z": z})["z"]
    expected = ordered.double()({"z": z[order]})["z"]
    torch.testing.assert_close(found[order], expected)
    assert not torch.allclose(found, expected)


def test_the_inverse_names_a_scale_that_has_underflowed():
    g = BlockIAF(SHAPES, scale="exponential").double()
    with torch.no_grad():
        g.first_alpha[0].fill_(-800)
    with pytest.raises(ValueError, match=r"a scale of a\.weight has underflowed"):
        g.inverse(point())


def test_the_released_variant_has_as_many_parameters_as_the_published_code():
    """Counted by running the published class: 3,447,535 at 84x84 and 415,661 on Omniglot."""
    for model, expected in (
        (mm.models.Conv4(), 3_447_535),
        (mm.models.Conv4(channels=1, image_size=28), 415_661),
    ):
        geometry = mm.make_learner("blockiaf:variant=released", model).geometry
        assert sum(p.numel() for p in geometry.parameters()) == expected


def test_the_paper_variant_is_logistic_and_random():
    paper = mm.make_learner("blockiaf:variant=paper", smooth_conv()).geometry.g
    live = mm.make_learner("blockiaf", smooth_conv()).geometry.g
    z = {n: p.detach() for n, p in smooth_conv().named_parameters()}
    assert all(torch.equal(live(z)[n], p) for n, p in z.items())
    first = paper(z)["first_conv.weight"]
    torch.testing.assert_close(first, z["first_conv.weight"] / 2)
    assert all(factor.any() for _, factor in head_factors(paper))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": "huge"}, "scale is 'huge'"),
        ({"heads": "two"}, "heads is 'two'"),
        ({"modes": {"a.weight": (5, 3)}}, "do not hold"),
        ({"modes": {"nothing": (5, 3)}}, "do not hold"),
    ],
)
def test_options_that_are_none_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        BlockIAF(SHAPES, **options)


def test_a_layer_is_a_block_with_its_normalisation():
    model = mm.models.Conv4(width=8)
    blocks = Partition({n: tuple(p.shape) for n, p in model.named_parameters()}).blocks
    assert [len(block) for block in blocks] == [4, 4, 4, 4, 2]
    assert blocks[1][0] == "blocks.1.conv.weight"
    assert blocks[1][3] == "blocks.1.norm.bias"


@pytest.mark.parametrize("kind", SCALES)
def test_a_scale_comes_with_its_slope(kind):
    alpha = torch.linspace(-0.4, 0.4, 9, dtype=torch.float64, requires_grad=True)
    value, slope = SCALES[kind](alpha)
    (expected,) = torch.autograd.grad(value.sum(), alpha)
    torch.testing.assert_close(slope, expected)


def test_the_wide_scale_is_the_bounded_scale_of_the_other_geometries():
    alpha = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.equal(SCALES["wide"](alpha)[0], bounded_scale(alpha))


def test_scale_is_bounded_and_one_at_the_start():
    x = torch.tensor([-1e3, 0.0, 1e3], dtype=torch.float64)
    sigma = {kind: scale(x)[0].tolist() for kind, scale in SCALES.items()}
    assert sigma["wide"] == pytest.approx([math.exp(-3), 1.0, math.exp(3)])
    assert sigma["wide"][1] == 1.0
    assert sigma["bounded"] == [0.0, 1.0, 2.0]
    assert sigma["logistic"][1] == 0.5
    assert sigma["exponential"][1] == 1.0


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([["a.weight"], ["a.bias", "b.weight"]], "misses .*b.bias"),
        ([["a.weight", "a.bias"], ["a.bias", "b.weight", "b.bias"]], "repeats .*a.bias"),
        ([["a.weight", "a.bias", "b.weight", "b.bias", "c"]], "does not know .*c"),
        ([["a.weight", "a.bias", "b.weight", "b.bias"], []], "empty block"),
        ([[0, 1], list(range(3, 43))], r"misses \[2\]"),
        ([list(range(43)), [0]], r"repeats \[0\]"),
        ("rows", "'rows'"),
        ([["a.weight", 3]], "names or indices"),
    ],
)
def test_partitions_that_are_none_are_refused(blocks, words):
    with pytest.raises(ValueError, match=words):
        BlockIAF(SHAPES, blocks=blocks)


def test_given_blocks_work_through_the_registry():
    model = mm.models.MLP(1, 1, hidden=(4,))
    names = [n for n, _ in model.named_parameters()]
    learner = mm.make_learner("blockiaf", model, blocks=[names[2:], names[:2]])
    assert learner.geometry.g.partition.blocks[0] == names[2:]
    indices = [list(range(0, 13, 2)), list(range(1, 13, 2))]
    learner = mm.make_learner("blockiaf", model, blocks=indices)
    assert [len(i) for i in learner.geometry.g.partition.indices] == [7, 6]


def head_factors(g: BlockIAF):
    for (shape, _), decoders in zip(g.decoded.members.items(), g.decoders, strict=True):
        for head in (decoders.alpha, decoders.mu):
            for factor in head.factors:
                yield len(shape), factor


def trained_on(data: str, spec: str) -> tuple[mm.Learner, mm.Learner]:
    """A learner before and after 200 outer steps."""
    torch.manual_seed(0)
    if data == "sinusoid":
        model = mm.models.MLP(1, 1, hidden=(16, 16))
        stream = mm.tasks("sinusoid", shots=10, batch=4)
        batches = (stream[step] for step in range(200))
    else:
        model = smooth_conv().float()
        (sx, sy), (qx, qy) = image_tasks()
        fixed = mm.Task(mm.Batch(sx.float(), sy), mm.Batch(qx.float(), qy))
        batches = (fixed for _ in range(200))
    first, learner = (
        mm.make_learner(spec, model, steps=2, lr=0.05, vectorize=True) for _ in range(2)
    )
    learner.load_state_dict(first.state_dict())
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad()
        learner.meta_loss(batch).backward()
        optimizer.step()
    return first, learner


@pytest.mark.slow
@pytest.mark.parametrize("data", ["sinusoid", "conv"])
def test_cross_layer_factors_move_in_training(data):
    first, learner = trained_on(data, "blockiaf")
    before, after = (list(head_factors(one.geometry.g)) for one in (first, learner))
    for (_, a), (_, b) in zip(before, after, strict=True):
        assert not torch.equal(a, b)
    z = {n: p.detach() for n, p in learner.theta().items()}
    j = jacobian(learner.geometry.g, z)
    sizes = [sum(z[n].numel() for n in block) for block in learner.geometry.g.partition.blocks]
    edges = [0, *itertools.accumulate(sizes)]
    for a, b in itertools.combinations(range(len(sizes)), 2):
        assert j[edges[b] : edges[b + 1], edges[a] : edges[a + 1]].any()


@pytest.mark.slow
@pytest.mark.parametrize("data", ["sinusoid", "conv"])
def test_the_released_heads_of_weights_never_leave_zero(data):
    _, learner = trained_on(data, "blockiaf:variant=released")
    g = learner.geometry.g
    weights = [factor for order, factor in head_factors(g) if order > 1]
    assert weights
    assert all(not factor.any() for factor in weights)
    # Vectors have a single factor, which does train: there alone is it autoregressive.
    assert any(factor.any() for order, factor in head_factors(g) if order == 1)


def test_the_released_map_of_weights_is_metasgd_with_positive_rates():
    learner = mm.make_learner("blockiaf:variant=released", smooth_conv(), steps=3, lr=0.1)
    random = torch.Generator().manual_seed(0)
    g = learner.geometry.g
    with torch.no_grad():
        for decoders in g.decoders:
            for head in (decoders.alpha, decoders.mu):
                noise = torch.randn(head.bias.shape, generator=random, dtype=torch.float64)
                head.bias.add_(0.3 * noise)
    z = point(1, shapes={n: tuple(p.shape) for n, p in learner.theta().items()})
    with torch.no_grad():
        once, twice = g(z), g({n: 2 * p for n, p in z.items()})
        slope = {n: twice[n] - once[n] for n in z}
    scales = scales_of(g, z)
    for n, p in z.items():
        if p.dim() > 1:
            expected = scales[n].detach().reshape(p.shape) * p
            torch.testing.assert_close(slope[n], expected, rtol=1e-9, atol=1e-12)
            assert bool((scales[n] > 0).all())


def test_nothing_couples_a_single_block():
    g = BlockIAF(SHAPES, blocks=[list(SHAPES)])
    assert not len(g.encoders)
    assert g.bounds() is None
    assert g.bounds(current=True) == (1.0, 1.0)
    assert BlockIAF(SHAPES).bounds(current=True) is None
