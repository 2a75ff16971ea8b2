"""Models that are not ours: odd names, tied, frozen and random parts; a method's own noise."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.testing.methods import (
    check_learner_gradient,
    learned,
    meta_gradient,
    relative_difference,
)
from metamirror.testing.networks import smooth_mlp
from tests.comparing import assert_equal_learners, one
from tests.networks import conv4, frozen, plain, point_tasks, shaken, tied
from tests.table import FIRST, row_of

methods = pytest.mark.parametrize("method", FIRST)


AWKWARD = {"plain": plain, "tied": tied, "frozen": frozen}
awkward = pytest.mark.parametrize("kind", AWKWARD)


@methods
@awkward
def test_awkward_models_adapt_and_learn(kind: str, method: str):
    learner = shaken(mm.make_learner(method, AWKWARD[kind](), steps=2, lr=0.1), size=0.02)
    grads = meta_gradient(learner, point_tasks())
    assert all(g.isfinite().all() for g in grads.values())
    learned = [name for name in learner.adapts if name not in learner.start.computed]
    assert all(grads[f"model.{name}"].abs().max() > 0 for name in learned)
    if not learner.geometry.descends:
        return
    support = one(point_tasks().support)
    start = learner.geometry.primal(learner.begin(support, seed=1))
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
    check_learner_gradient(learner, point_tasks())


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
    # At first order, or where the path has no derivative at all, a prior has no gradient.
    prior = None if row_of(method).one_order else "diagonal:0.1"
    options = {"prior": prior, "adjoint": "unrolled"}
    learner = mm.make_learner(method, model, steps=2, lr=0.1, **options)
    assert not any(name.startswith("blocks.0.") for name in learner.adapts)
    before = copy.deepcopy(learner.state_dict())
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    for step in range(2):
        optimizer.zero_grad()
        learner.meta_loss(point_tasks(), seeds=[step, 7]).backward()
        optimizer.step()
    changed = {n for n, t in learner.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == set(learned(learner))
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


@pytest.mark.parametrize("vectorize", [False, True])
def test_seeds_decide_the_masks_of_mtnet(vectorize: bool):
    learner = mm.make_learner("mtnet:mask_logit=0", smooth_mlp(), lr=0.5, vectorize=vectorize)

    def loss(*seeds: int) -> float:
        return learner.meta_loss(point_tasks(), seeds=seeds).item()

    assert loss(0, 1) == loss(0, 1)
    assert len({loss(0, 1), loss(0, 2), loss(2, 1)}) == 3


def test_without_seeds_the_random_state_of_torch_decides():
    learner = mm.make_learner("mtnet:mask_logit=0", smooth_mlp(), lr=0.5)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return learner.meta_loss(point_tasks()).item()

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)


def test_the_seed_of_an_adaptation_decides_its_masks():
    learner = mm.make_learner("mtnet:mask_logit=0", smooth_mlp(), lr=0.5)
    support = one(point_tasks().support)
    first, again, other = (learner.adapt(support, seed=s).path.losses for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("bias", [True, False])
def test_a_tied_head_adapts_under_the_name_it_was_given_first(bias):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.head = nn.Linear(6, 6, bias=bias)
            self.head.weight = self.first.weight

        def forward(self, x):
            return self.head(torch.tanh(self.first(x)))

    model = Tied().double()
    names = {"first.weight", "head.bias"} if bias else {"first.weight"}
    assert set(mm.make_learner("anil", model).adapts) == names
    closed, brute = (mm.make_learner("ecml", model, closed_form=flag) for flag in (True, False))
    tasks = point_tasks()
    torch.testing.assert_close(closed.meta_loss(tasks), brute.meta_loss(tasks), rtol=1e-6, atol=0)


@methods
def test_an_adapted_model_can_be_copied(method):
    learner = mm.make_learner(method, smooth_mlp())
    adapted = learner.adapt(one(point_tasks().support), seed=0)
    x = point_tasks().query.x[0]
    assert torch.equal(copy.deepcopy(adapted)(x), adapted(x))


@methods
def test_a_model_that_learns_nothing_is_refused(method):
    model = smooth_mlp().requires_grad_(False)
    with pytest.raises(ValueError, match=r"learned|requires a gradient|to mix"):
        mm.make_learner(method, model)
