"""Learners: the inner level, normalisation, priors, awkward models, and learners on disk."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror import priors
from networks import (
    conv4,
    image_tasks,
    meta_gradient,
    point_tasks,
    relative_difference,
    shaken,
    smooth_conv,
    smooth_mlp,
    trained,
)

methods = pytest.mark.parametrize("method", mm.METHODS)


def one(batch: mm.Batch, index: int = 0) -> mm.Batch:
    return mm.Batch(batch.x[index], batch.y[index])


def assert_same_params(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for name, p in expected.items():
        torch.testing.assert_close(found[name], p, rtol=0, atol=1e-12)


def assert_equal_learners(a: mm.Learner, b: mm.Learner, tasks: mm.Task) -> None:
    for (name, p), (other, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (name, p.requires_grad) == (other, q.requires_grad)
        assert torch.equal(p, q)
    assert a.adapts == b.adapts
    assert torch.equal(a.meta_loss(tasks, seeds=[5, 6]), b.meta_loss(tasks, seeds=[5, 6]))


def assert_gradient_is_the_slope(learner: mm.Learner, tasks: mm.Task, part: str = "") -> None:
    """The meta-gradient along a random direction against central differences."""
    grad = meta_gradient(learner, tasks)
    named = {name: p for name, p in trained(learner).items() if name.startswith(part)}
    assert named
    random = torch.Generator().manual_seed(3)
    direction = {n: torch.randn(p.shape, generator=random).to(p) for n, p in named.items()}
    h, values = 1e-6, []
    for sign in (1, -1):
        moved = copy.deepcopy(learner)
        with torch.no_grad():
            for name, p in trained(moved).items():
                if name in named:
                    p.add_(sign * h * direction[name])
        values.append(moved.meta_loss(tasks, seeds=[0, 1]).item())
    slope = (values[0] - values[1]) / (2 * h)
    found = sum(float((grad[n] * direction[n]).sum()) for n in named)
    scale = max(abs(slope), sum(float(grad[n].square().sum()) for n in named) ** 0.5)
    assert scale > 1e-6
    assert found == pytest.approx(slope, abs=1e-6 * scale)


class ByHand:
    """Gradient descent as anyone would write it, on a copy of the model."""

    def __init__(self, model: nn.Module, batch: mm.Batch, *, steps, lr, loss, pull=None):
        model = copy.deepcopy(model)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.losses, self.grad_norms = [], []
        for _ in range(steps):
            value = loss(model(batch.x), batch.y)
            grads = torch.autograd.grad(value, list(model.parameters()))
            squares = 0.0
            with torch.no_grad():
                for (name, p), g in zip(model.named_parameters(), grads, strict=True):
                    g = g + (pull(name, p - start[name]) if pull else 0)
                    squares += float(g.square().sum())
                    p.sub_(lr * g)
            self.losses.append(value.item())
            self.grad_norms.append(squares**0.5)
        self.params = {name: p.detach() for name, p in model.named_parameters()}


# The inner level


@methods
def test_a_step_size_of_zero_leaves_parameters_unchanged(method: str):
    learner = mm.make_learner(method, smooth_mlp(), steps=3)
    start = learner.geometry.primal(learner.begin(seed=0))
    adapted = learner.adapt(one(point_tasks().support), lr=0.0, seed=0)
    for name, p in adapted.params.items():
        assert torch.equal(p, start[name])


def test_path_equals_descent_written_by_hand():
    support = one(image_tasks().support)
    model = smooth_conv()
    hand = ByHand(model, support, steps=4, lr=0.1, loss=F.cross_entropy)
    adapted = mm.make_learner("maml", model, steps=4, lr=0.1).adapt(support)
    assert_same_params(adapted.params, hand.params)
    assert adapted.path.losses.tolist() == pytest.approx(hand.losses, rel=1e-12)
    assert adapted.path.grad_norms.tolist() == pytest.approx(hand.grad_norms, rel=1e-10)


def test_adapt_takes_its_own_steps_and_step_size():
    support = one(point_tasks().support)
    learner = mm.make_learner("maml", smooth_mlp(), steps=2, lr=0.01)
    hand = ByHand(smooth_mlp(), support, steps=6, lr=0.3, loss=F.cross_entropy)
    assert_same_params(learner.adapt(support, steps=6, lr=0.3).params, hand.params)
    assert (learner.steps, learner.lr) == (2, 0.01)


def test_meta_loss_is_the_mean_over_tasks_of_the_adapted_query_loss():
    tasks = point_tasks(count=3)
    learner = mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.2)
    losses = []
    for i in range(3):
        adapted = learner.adapt(one(tasks.support, i))
        losses.append(F.cross_entropy(adapted(tasks.query.x[i]), tasks.query.y[i]).item())
    assert learner.meta_loss(tasks).item() == pytest.approx(sum(losses) / 3, rel=1e-12)


def test_a_loss_of_ones_own_is_used_on_both_levels():
    tasks = point_tasks(count=1)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.3)
    learner = mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.2, loss=smoothed)
    support = one(tasks.support)
    hand = ByHand(smooth_mlp(), support, steps=3, lr=0.2, loss=smoothed)
    adapted = learner.adapt(support)
    assert_same_params(adapted.params, hand.params)
    expected = smoothed(adapted(tasks.query.x[0]), tasks.query.y[0]).item()
    assert learner.meta_loss(tasks).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("vectorize", [False, True])
def test_float_targets_mean_regression(vectorize: bool):
    torch.manual_seed(0)
    model = mm.models.MLP(1, 1)
    tasks = mm.tasks("sinusoid", shots=10, batch=1)[0]
    learner = mm.make_learner("maml", model, steps=3, lr=0.01, vectorize=vectorize)
    hand = ByHand(model, one(tasks.support), steps=3, lr=0.01, loss=F.mse_loss)
    adapted = learner.adapt(one(tasks.support))
    for name, p in hand.params.items():
        torch.testing.assert_close(adapted.params[name], p)
    expected = F.mse_loss(adapted(tasks.query.x[0]), tasks.query.y[0])
    torch.testing.assert_close(learner.meta_loss(tasks).detach(), expected)


def test_integer_inputs_reach_a_model_that_takes_them():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    tokens = torch.randint(7, (6, 3))
    learner = mm.make_learner("maml", model, steps=5, lr=0.5)
    losses = learner.adapt(mm.Batch(tokens, torch.arange(6) % 3)).path.losses
    assert losses[-1] < losses[0]


# What adaptation keeps


def peak_of_saved_tensors(run) -> int:
    """How many tensors autograd held at once."""
    live = peak = 0

    class Held:
        def __init__(self, tensor: Tensor):
            nonlocal live, peak
            self.tensor = tensor
            live += 1
            peak = max(peak, live)

        def __del__(self):
            nonlocal live
            live -= 1

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        run()
    return peak


@pytest.mark.parametrize("method", ["maml", "metasgd", "mtnet", "warpgrad", "blockiaf", "gradnet"])
def test_memory_of_adaptation_does_not_grow_with_the_steps(method: str):
    learner = mm.make_learner(method, smooth_mlp(), lr=0.1)
    support = one(point_tasks().support)
    few, many = (
        peak_of_saved_tensors(lambda k=k: learner.adapt(support, steps=k, seed=0)) for k in (2, 20)
    )
    assert 0 < few == many
    assert len(learner.adapt(support, steps=20).path.points) == 1


def test_memory_of_the_meta_loss_does_grow_with_the_steps():
    few, many = (
        peak_of_saved_tensors(
            lambda k=k: mm.make_learner("maml", smooth_mlp(), steps=k).meta_loss(point_tasks())
        )
        for k in (2, 20)
    )
    assert many > 5 * few


@methods
def test_adaptation_keeps_no_graph(method: str):
    learner = mm.make_learner(method, smooth_mlp(), steps=2, lr=0.1)
    support = one(point_tasks().support)
    adapted = learner.adapt(support, seed=0)
    kept = (*adapted.params.values(), adapted.path.losses, adapted.path.grad_norms)
    assert not any(t.requires_grad for t in (*kept, adapted(support.x)))


def test_the_path_is_kept_on_request():
    learner = mm.make_learner("maml", smooth_mlp(), lr=0.1)
    support = one(point_tasks().support)
    points = learner.adapt(support, steps=3, keep=True).path.points
    assert len(points) == 4
    for k, point in enumerate(points):
        assert_same_params(point, learner.adapt(support, steps=k).params)


@pytest.mark.parametrize("steps", [0, 3])
def test_an_adapted_model_stays_when_the_learner_learns_on(steps: int):
    learner = mm.make_learner("maml", smooth_mlp(), steps=steps)
    support = one(point_tasks().support)
    adapted = learner.adapt(support)
    before = adapted(support.x)
    shaken(learner)
    assert torch.equal(adapted(support.x), before)
    assert not any(p.requires_grad for p in adapted.params.values())


# Normalisation


def normalised(norm: str, method: str = "maml", **options) -> mm.Learner:
    return shaken(
        mm.make_learner(method, smooth_conv(), steps=3, lr=0.1, norm=norm, **options), seed=4
    )


def test_inductive_predictions_do_not_depend_on_the_batch():
    (support, query) = (one(b) for b in image_tasks())
    adapted = normalised("inductive").adapt(support)
    rows = torch.cat([adapted(row[None]) for row in query.x])
    torch.testing.assert_close(rows, adapted(query.x), rtol=0, atol=1e-12)


def test_transductive_predictions_do_depend_on_the_batch():
    (support, query) = (one(b) for b in image_tasks())
    adapted = normalised("transductive").adapt(support)
    rows = torch.cat([adapted(row[None]) for row in query.x])
    assert (rows - adapted(query.x)).abs().max() > 1e-3


def test_both_protocols_agree_on_the_support_set():
    support = one(image_tasks().support)
    inductive, transductive = (
        normalised(norm).adapt(support) for norm in ("inductive", "transductive")
    )
    assert_same_params(inductive.params, transductive.params)
    expected = transductive(support.x)
    torch.testing.assert_close(inductive(support.x), expected, rtol=0, atol=1e-12)


class Shared(nn.Module):
    """One normalisation in two places."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = mm.models.BatchNorm(4)
        self.mix = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.mix(self.norm(self.conv(x)))).flatten(1))


def test_a_layer_used_twice_has_statistics_for_each_use():
    torch.manual_seed(0)
    model = Shared().double()
    support = one(image_tasks().support)
    inductive, transductive = (
        mm.make_learner("maml", model, lr=0.1, norm=norm).adapt(support)(support.x)
        for norm in ("inductive", "transductive")
    )
    torch.testing.assert_close(inductive, transductive, rtol=0, atol=1e-12)


def test_inductive_meta_loss_is_that_of_the_adapted_models():
    tasks = image_tasks()
    learner = normalised("inductive")
    losses = []
    for i in range(2):
        adapted = learner.adapt(one(tasks.support, i))
        losses.append(F.cross_entropy(adapted(tasks.query.x[i]), tasks.query.y[i]).item())
    assert learner.meta_loss(tasks).item() == pytest.approx(sum(losses) / 2, rel=1e-12)


@pytest.mark.parametrize("method", ["maml", "metasgd", "warpgrad:batch_norm=true", "blockiaf"])
def test_inductive_meta_gradient_equals_finite_differences(method: str):
    assert_gradient_is_the_slope(normalised("inductive", method), image_tasks())


@methods
def test_loop_and_vmap_agree_under_inductive_normalisation(method: str):
    grads = [
        meta_gradient(normalised("inductive", method, vectorize=vectorize), image_tasks())
        for vectorize in (False, True)
    ]
    assert relative_difference(*grads) < 1e-10


def with_torch_norm(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(0)
    layers = {
        "conv": nn.Conv2d(1, 4, 3),
        "its_norm": norm(4),
        "act": nn.Tanh(),
        "flat": nn.Flatten(),
        "head": nn.Linear(144, 3),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.double()


REFUSED = [{"vectorize": True}, {"norm": "inductive"}]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: next(iter(options)))
def test_batch_norm_of_torch_is_refused_where_it_would_be_wrong(options: dict):
    with pytest.raises(ValueError, match=r"its_norm.*convert_batch_norm") as raised:
        mm.make_learner("maml", with_torch_norm(), **options)
    other = {"vectorize": "leave vectorize off", "norm": "norm='transductive'"}
    assert other[next(iter(options))] in str(raised.value)


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: next(iter(options)))
def test_the_way_out_for_batch_norm_leads_out(options: dict):
    model = mm.models.convert_batch_norm(with_torch_norm())
    assert_gradient_is_the_slope(mm.make_learner("maml", model, lr=0.1, **options), image_tasks())


def test_the_ways_out_for_instance_norm_lead_out():
    model = with_torch_norm(nn.InstanceNorm2d)
    with pytest.raises(ValueError, match=r"its_norm.*nn\.GroupNorm.*leave vectorize off"):
        mm.make_learner("maml", model, vectorize=True)
    grouped = with_torch_norm(lambda channels: nn.GroupNorm(channels, channels, affine=False))
    losses = [
        mm.make_learner("maml", m, lr=0.1, vectorize=v).meta_loss(image_tasks())
        for m, v in ((model, False), (grouped, True))
    ]
    torch.testing.assert_close(*losses)


def test_instance_norm_is_inductive_already():
    model = with_torch_norm(nn.InstanceNorm2d)
    support = one(image_tasks().support)
    adapted = mm.make_learner("maml", model, norm="inductive").adapt(support)
    rows = torch.cat([adapted(row[None]) for row in support.x])
    torch.testing.assert_close(rows, adapted(support.x), rtol=0, atol=1e-12)


def test_running_statistics_are_left_alone():
    learner = mm.make_learner("maml", with_torch_norm(), lr=0.1)
    before = {name: b.clone() for name, b in learner.named_buffers()}
    assert set(before) == {
        f"model.its_norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    learner.meta_loss(image_tasks()).backward()
    support = one(image_tasks().support)
    learner.adapt(support)(support.x)
    for name, b in learner.named_buffers():
        assert torch.equal(b, before[name]), name


def test_batch_norm_of_torch_adapts_as_written_by_hand():
    support = one(image_tasks().support)
    hand = ByHand(with_torch_norm(), support, steps=3, lr=0.1, loss=F.cross_entropy)
    learner = mm.make_learner("maml", with_torch_norm(), steps=3, lr=0.1)
    assert_same_params(learner.adapt(support).params, hand.params)


def test_batch_norm_over_features_alone_works():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()
    assert_gradient_is_the_slope(mm.make_learner("maml", model, lr=0.1), point_tasks())


# Priors

LAM = 0.7


def prior_learner(spec: str, method: str = "maml", **options) -> mm.Learner:
    return mm.make_learner(method, smooth_mlp(), steps=3, lr=0.2, prior=spec, **options)


def test_isotropic_prior_pulls_towards_the_start():
    support = one(point_tasks().support)
    hand = ByHand(
        smooth_mlp(),
        support,
        steps=3,
        lr=0.2,
        loss=F.cross_entropy,
        pull=lambda name, moved: LAM * moved,
    )
    adapted = prior_learner(f"isotropic:{LAM}").adapt(support)
    assert_same_params(adapted.params, hand.params)
    assert adapted.path.losses.tolist() == pytest.approx(hand.losses, rel=1e-12)
    assert adapted.path.grad_norms.tolist() == pytest.approx(hand.grad_norms, rel=1e-10)


def test_diagonal_prior_pulls_each_parameter_by_its_own_precision():
    support = one(point_tasks().support)
    learner = prior_learner(f"diagonal:{LAM}")
    for p in learner.prior.parameters():
        assert torch.allclose(p.exp(), torch.tensor(LAM, dtype=torch.float64))
    shaken(learner.prior, size=0.5)
    precisions = {
        name: p.detach().exp()
        for name, p in zip(learner.adapts, learner.prior.parameters(), strict=True)
    }
    hand = ByHand(
        smooth_mlp(),
        support,
        steps=3,
        lr=0.2,
        loss=F.cross_entropy,
        pull=lambda name, moved: precisions[name] * moved,
    )
    assert_same_params(learner.adapt(support).params, hand.params)


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("method", ["maml", "mtnet:masks=false", "blockiaf", "anil"])
@pytest.mark.parametrize("spec", ["isotropic:0.7", "diagonal:0.7"])
def test_meta_gradient_under_a_prior_equals_finite_differences(
    spec: str, method: str, vectorize: bool
):
    learner = shaken(prior_learner(spec, method, vectorize=vectorize))
    assert_gradient_is_the_slope(learner, point_tasks())


def test_meta_gradient_of_the_precisions_equals_finite_differences():
    learner = shaken(prior_learner("diagonal:0.7"))
    assert len([name for name in trained(learner) if name.startswith("prior.")]) == 6
    assert_gradient_is_the_slope(learner, point_tasks(), part="prior.log_precision")


def test_a_prior_covers_exactly_what_adapts():
    learner = prior_learner("diagonal:1", "anil")
    assert learner.prior.names == ["head.weight", "head.bias"] == learner.adapts


def test_a_prior_can_be_given_as_an_object():
    support = one(point_tasks().support)
    by_word, by_object = (
        mm.make_learner("maml", smooth_mlp(), steps=3, lr=0.2, prior=prior).adapt(support)
        for prior in ("isotropic:0.1", priors.Isotropic(0.1))
    )
    assert_same_params(by_object.params, by_word.params)


BAD_PRIORS = {
    "isotropic": "'isotropic'.*WEIGHT",
    "isotropic:heavy": "'isotropic:heavy'.*WEIGHT",
    "laplace:0.1": "'laplace:0.1'.*isotropic.*diagonal",
    "isotropic:-1": "lam is -1.0",
    "isotropic:nan": "lam is nan",
    "isotropic:inf": "lam is inf",
    "diagonal:0": "lam is 0.0.*above 0",
    "": "prior is ''",
}


@pytest.mark.parametrize("spec", BAD_PRIORS)
def test_a_bad_prior_is_named(spec: str):
    with pytest.raises(ValueError, match=BAD_PRIORS[spec]):
        prior_learner(spec)


# Awkward models


class Awkward(nn.Module):
    """Underscores, nesting, a scalar, a raw parameter, a buffer."""

    def __init__(self):
        super().__init__()
        self._first_layer_ = nn.Linear(6, 6)
        self.deep = nn.ModuleDict({"in_ner": nn.ModuleList([nn.Linear(6, 6), nn.Tanh()])})
        self.scale_ = nn.Parameter(torch.tensor(1.5))
        self.shift_by = nn.Parameter(torch.linspace(-1, 1, 6))
        self.register_buffer("centre", torch.full((6,), 0.1))
        self.out_put = nn.Linear(6, 3)
        self.warp_points = ["_first_layer_", "deep.in_ner.0"]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self._first_layer_(x - self.centre))
        for layer in self.deep["in_ner"]:
            x = layer(x)
        return self.out_put(self.scale_ * x + self.shift_by)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return Awkward().double()


def tied() -> nn.Module:
    model = plain()
    model.deep["in_ner"][0].weight = model._first_layer_.weight
    return model


def frozen() -> nn.Module:
    model = plain()
    model._first_layer_.requires_grad_(False)
    model.scale_.requires_grad_(False)
    return model


AWKWARD = {"plain": plain, "tied": tied, "frozen": frozen}
awkward = pytest.mark.parametrize("kind", AWKWARD)


@methods
@awkward
def test_awkward_models_adapt_and_learn(kind: str, method: str):
    learner = shaken(mm.make_learner(method, AWKWARD[kind](), steps=2, lr=0.1), size=0.02)
    grads = meta_gradient(learner, point_tasks())
    assert all(g.isfinite().all() for g in grads.values())
    assert all(grads[f"model.{name}"].abs().max() > 0 for name in learner.adapts)
    support = one(point_tasks().support)
    start = learner.geometry.primal(learner.begin(seed=1))
    adapted = learner.adapt(support, seed=1)
    assert list(adapted.params) == learner.adapts
    # A mask of MT-net may hold a whole bias.
    if method != "mtnet":
        assert all(not torch.equal(p, start[name]) for name, p in adapted.params.items())


@methods
@awkward
def test_awkward_models_are_saved_and_loaded(kind: str, method: str, tmp_path):
    learner = shaken(mm.make_learner(method, AWKWARD[kind](), steps=2, lr=0.1), size=0.02)
    mm.save(learner, tmp_path)
    assert_equal_learners(mm.load(tmp_path, model=AWKWARD[kind]()), learner, point_tasks())


@awkward
def test_awkward_models_adapt_as_written_by_hand(kind: str):
    support = one(point_tasks().support)
    model = AWKWARD[kind]()
    learner = mm.make_learner("maml", model, steps=3, lr=0.1)
    by_hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in by_hand.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(by_hand(support.x), support.y).backward()
        optimizer.step()
    adapted = learner.adapt(support)
    for name, p in adapted.params.items():
        torch.testing.assert_close(p, by_hand.get_parameter(name).detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(adapted(support.x), by_hand(support.x).detach())


@awkward
def test_awkward_models_have_the_right_meta_gradient(kind: str):
    learner = mm.make_learner("maml", AWKWARD[kind](), steps=3, lr=0.1)
    assert_gradient_is_the_slope(learner, point_tasks())


def test_tied_weights_are_one_parameter_and_stay_tied(tmp_path):
    learner = mm.make_learner("maml", tied())
    assert "deep.in_ner.0.weight" not in learner.adapts
    mm.save(learner, tmp_path)
    model = mm.load(tmp_path, model=tied()).model
    assert model.deep["in_ner"][0].weight is model._first_layer_.weight


@methods
def test_what_requires_a_gradient_is_exactly_what_an_outer_step_changes(method: str):
    torch.manual_seed(0)
    model = mm.models.MLP(6, 3, hidden=(40, 40), activation="tanh").double()
    model.blocks[0].requires_grad_(False)
    given = copy.deepcopy(model.state_dict())
    learner = mm.make_learner(method, model, steps=2, lr=0.1, prior="diagonal:0.1")
    assert not any(name.startswith("blocks.0.") for name in learner.adapts)
    before = copy.deepcopy(learner.state_dict())
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    for step in range(2):
        optimizer.zero_grad()
        learner.meta_loss(point_tasks(), seeds=[step, 7]).backward()
        optimizer.step()
    changed = {n for n, t in learner.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == set(trained(learner))
    assert all(torch.equal(t, given[name]) for name, t in model.state_dict().items())


def dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 3)).double()


@pytest.mark.parametrize("vectorize", [False, True])
def test_dropout_follows_the_random_state_of_torch(vectorize: bool):
    learner = mm.make_learner("maml", dropout(), steps=2, lr=0.1, vectorize=vectorize)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return learner.meta_loss(point_tasks()).item()

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)
    assert all(g.isfinite().all() for g in meta_gradient(learner, point_tasks()).values())


def test_dropout_draws_anew_for_each_task_under_vmap():
    """Equal tasks: with one mask for all, their mean loss would be the loss of one."""
    x, y = (t[:1].repeat_interleave(64, 0) for t in point_tasks().support)
    tasks = mm.Task(mm.Batch(x, y), mm.Batch(x, y))
    learner = mm.make_learner("maml", dropout(), steps=0, vectorize=True)

    def spread(tasks: mm.Task) -> float:
        return torch.stack([learner.meta_loss(tasks).detach() for _ in range(20)]).std().item()

    one_task = mm.Task(*(mm.Batch(b.x[:1], b.y[:1]) for b in tasks))
    torch.manual_seed(0)
    assert spread(tasks) < 0.3 * spread(one_task)


def test_dropout_in_evaluation_is_the_same_in_loop_and_vmap():
    grads = [
        meta_gradient(mm.make_learner("maml", dropout(), vectorize=v).eval(), point_tasks())
        for v in (False, True)
    ]
    assert relative_difference(*grads) < 1e-10


def test_checking_the_input_does_not_shift_the_random_state():
    learner = mm.make_learner("maml", dropout(), steps=0)
    torch.manual_seed(0)
    learner.adapt(one(point_tasks().support))
    found = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), found)


@pytest.mark.parametrize("vectorize", [False, True])
def test_bytes_in_colour_reach_a_grey_model(vectorize: bool):
    x = torch.randint(256, (2, 6, 16, 16, 3), dtype=torch.uint8)
    grey = (x.double() / 255) @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    y = torch.arange(6).expand(2, 6) % 3
    learner = mm.make_learner("maml", conv4(), steps=1, vectorize=vectorize)
    losses = [learner.meta_loss(mm.Task(mm.Batch(v, y), mm.Batch(v, y))) for v in (x, grey)]
    torch.testing.assert_close(*losses, rtol=1e-10, atol=0)


# Noise


@pytest.mark.parametrize("vectorize", [False, True])
def test_seeds_decide_the_masks_of_mtnet(vectorize: bool):
    learner = mm.make_learner("mtnet", smooth_mlp(), lr=0.5, vectorize=vectorize)

    def loss(*seeds: int) -> float:
        return learner.meta_loss(point_tasks(), seeds=seeds).item()

    assert loss(0, 1) == loss(0, 1)
    assert len({loss(0, 1), loss(0, 2), loss(2, 1)}) == 3


def test_without_seeds_the_random_state_of_torch_decides():
    learner = mm.make_learner("mtnet", smooth_mlp(), lr=0.5)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return learner.meta_loss(point_tasks()).item()

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)


def test_the_seed_of_an_adaptation_decides_its_masks():
    learner = mm.make_learner("mtnet", smooth_mlp(), lr=0.5)
    support = one(point_tasks().support)
    first, again, other = (learner.adapt(support, seed=s).path.losses for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# On disk


def saved(folder, **options) -> mm.Learner:
    learner = shaken(mm.make_learner("metasgd", smooth_mlp(), steps=2, lr=0.1, **options))
    mm.save(learner, folder)
    return learner


OPTIONS = [
    {"first_order": True},
    {"norm": "inductive"},
    {"vectorize": True},
    {"prior": "isotropic:0.1"},
    {"prior": "diagonal:0.1"},
    {"positive": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_come_back_from_disk(options: dict, tmp_path):
    learner = saved(tmp_path, **options)
    restored = mm.load(tmp_path)
    assert_equal_learners(restored, learner, point_tasks())
    assert restored.config == learner.config
    for name in ("steps", "lr", "first_order", "norm", "vectorize"):
        assert getattr(restored, name) == getattr(learner, name)


@methods
def test_what_is_frozen_comes_back_frozen(method: str, tmp_path):
    model = smooth_mlp()
    model.blocks[0].requires_grad_(False)
    learner = mm.make_learner(method, model, lr=0.1)
    mm.save(learner, tmp_path)
    assert_equal_learners(mm.load(tmp_path), learner, point_tasks())


def test_what_is_frozen_comes_back_frozen_in_a_model_of_ones_own(tmp_path):
    learner = mm.make_learner("maml", frozen())
    mm.save(learner, tmp_path)
    given = plain()
    assert_equal_learners(mm.load(tmp_path, model=given), learner, point_tasks())
    assert all(p.requires_grad for p in given.parameters())


def test_buffers_come_back(tmp_path):
    model = with_torch_norm()
    model(image_tasks().support.x[0])
    mm.save(mm.make_learner("maml", model), tmp_path)
    restored = mm.load(tmp_path, model=with_torch_norm()).model
    assert torch.equal(restored.its_norm.running_mean, model.its_norm.running_mean)
    assert restored.its_norm.num_batches_tracked == 1


def test_a_model_of_ones_own_must_be_given_again(tmp_path):
    mm.save(mm.make_learner("maml", plain()), tmp_path)
    with pytest.raises(ValueError, match="pass model="):
        mm.load(tmp_path)


def test_a_loss_of_ones_own_must_be_given_again(tmp_path):
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, label_smoothing=0.2)

    learner = saved(tmp_path, loss=loss)
    with pytest.raises(ValueError, match="pass loss="):
        mm.load(tmp_path)
    assert_equal_learners(mm.load(tmp_path, loss=loss), learner, point_tasks())


class Cauchy(priors.Prior):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, phi, phi0):
        return sum((1 + ((phi[n] - phi0[n]) / self.scale) ** 2).log().sum() for n in phi)


def test_a_prior_of_ones_own_must_be_given_again(tmp_path):
    learner = saved(tmp_path, prior=Cauchy())
    with pytest.raises(ValueError, match="pass prior="):
        mm.load(tmp_path)
    assert_equal_learners(mm.load(tmp_path, prior=Cauchy()), learner, point_tasks())


def damage(folder, what: str) -> None:
    config, tensors = folder / "learner.json", folder / "learner.safetensors"
    values = json.loads(config.read_text())
    if what == "tensors cut short":
        tensors.write_bytes(tensors.read_bytes()[:100])
    elif what == "tensors empty":
        tensors.write_bytes(b"")
    elif what == "tensors missing":
        tensors.unlink()
    elif what == "another format":
        config.write_text(json.dumps(values | {"format": 99}))
    elif what == "no object":
        config.write_text("[1, 2]")
    elif what == "no JSON":
        config.write_text("{")
    elif what == "no text":
        config.write_bytes(b"\xff\xfe\x00")
    elif what == "a field missing":
        del values["lr"]
        config.write_text(json.dumps(values))
    elif what == "no config":
        config.unlink()
    elif what == "another method":
        config.write_text(json.dumps(values | {"method": "maml", "options": {}}))
    else:
        config.write_text(json.dumps(values | {"model": values["model"] | {"hidden": [16, 8]}}))


DAMAGES = {
    "tensors cut short": "learner.safetensors is damaged",
    "tensors empty": "learner.safetensors is damaged",
    "tensors missing": "there is no .*learner.safetensors",
    "another format": "learner.json is not a learner of format 1",
    "no object": "learner.json is not a learner of format 1",
    "no JSON": "learner.json is not valid JSON",
    "no text": "learner.json is not valid JSON",
    "a field missing": r"learner.json is damaged: it lacks \['lr'\]",
    "no config": "holds no learner",
    "another method": "does not fit this learner.*geometry.rates",
    "another width": r"has shape \(16, 16\).*and \(8, 16\) in the learner",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_learner_is_named(what: str, tmp_path):
    saved(tmp_path)
    damage(tmp_path, what)
    with pytest.raises(ValueError, match=DAMAGES[what]):
        mm.load(tmp_path)


def test_the_last_learner_of_a_run_is_found_from_its_folder(tmp_path):
    learner = saved(tmp_path / "last")
    assert_equal_learners(mm.load(tmp_path, which="last"), learner, point_tasks())
    assert_equal_learners(mm.load(tmp_path, which="best"), learner, point_tasks())
    with pytest.raises(ValueError, match="which is 'first'"):
        mm.load(tmp_path, which="first")


def test_only_a_learner_of_make_learner_can_be_saved(tmp_path):
    with pytest.raises(ValueError, match="make_learner"):
        mm.save(mm.Learner(smooth_mlp()), tmp_path)
