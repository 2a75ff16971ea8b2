"""Operations without a second derivative: replaced while one is taken, or named before training."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.core.attention import plain_attention
from metamirror.experiments.inspection import loss_smoothness
from metamirror.testing.methods import (
    check_learner_gradient,
    meta_gradient,
    relative_difference,
)
from metamirror.testing.networks import WAYS, tasks_of
from tests.refusals import assert_refused

TASKS = tasks_of((4, 6))
TOKENS = mm.Task(*(mm.Batch((10 * b.x[..., 0].sigmoid()).long(), b.y) for b in TASKS))


class Wrapped(nn.Module):
    """A body, of which the first result is averaged over positions, and a head."""

    def __init__(self, body: nn.Module, width: int = 6, **called):
        super().__init__()
        self.body, self.called = body, called
        self.head = nn.Linear(width, WAYS)

    def forward(self, x):
        if isinstance(self.body, nn.MultiheadAttention):
            x = self.body(x, x, x, **self.called)[0]
        else:
            x = self.body(x)
        x = x[0] if isinstance(x, tuple) else x
        return self.head(torch.tanh(x.mean(1) if x.dim() == 3 else x))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x):
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))


def seeded(build, *args, **kwargs) -> nn.Module:
    torch.manual_seed(0)
    return Wrapped(build(*args, **kwargs)).double()


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    return Wrapped(layer).double()


ATTENTION = {
    "function": lambda: seeded(Fused),
    "module": lambda: seeded(nn.MultiheadAttention, 6, 2, batch_first=True),
    "without weights": lambda: Wrapped(
        nn.MultiheadAttention(6, 2, batch_first=True), need_weights=False
    ).double(),
    "encoder": encoder,
    "encoder in evaluation": lambda: encoder().eval(),
}


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("adjoint", ["unrolled", "rematerialised"])
def test_attention_has_the_right_meta_gradient(kind: str, adjoint: str):
    learner = mm.make_learner("maml", ATTENTION[kind](), steps=2, lr=0.1, adjoint=adjoint)
    check_learner_gradient(learner, TASKS)
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("method", ["maml", "blockiaf", "ecml:subset=all"])
def test_attention_is_the_same_under_vmap(kind: str, method: str):
    model = ATTENTION[kind]()
    torch.manual_seed(1)
    loop = mm.make_learner(method, model, steps=2, lr=0.1)
    stacked = mm.make_learner(method, model, steps=2, lr=0.1, vectorize=True)
    stacked.load_state_dict(loop.state_dict())
    assert relative_difference(meta_gradient(stacked, TASKS), meta_gradient(loop, TASKS)) < 1e-9


class Spy(nn.Module):
    """Notes whether fused attention is allowed when it runs."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(6, 6), []

    def forward(self, x):
        self.seen.append(torch.backends.cuda.flash_sdp_enabled())
        return F.scaled_dot_product_attention(*3 * [self.linear(x)])


def test_fused_attention_is_given_up_in_the_second_order_inner_loop_and_only_there():
    def fused(adjoint: str | None) -> list[bool]:
        torch.manual_seed(0)
        learner = mm.make_learner(
            "maml", Wrapped(Spy()).double(), steps=3, adjoint=adjoint or "first"
        )
        learner.task_losses(TASKS)  # with the trials
        seen = learner.model.body.seen
        seen.clear()
        if adjoint is None:
            learner.adapt(mm.Batch(*(t[0] for t in TASKS.support)))
        else:
            learner.task_losses(TASKS)
        return seen

    # Two tasks of three steps and a query each; a trial has been before.
    assert fused("unrolled") == 2 * [False, False, False, True]
    assert fused("first") == 8 * [True]
    assert fused(None) == 3 * [True]


def test_a_model_without_attention_never_asks_for_the_plain_one(monkeypatch):
    learner = mm.make_learner("maml", seeded(nn.Linear, 6, 6), steps=2)
    learner.meta_loss(TASKS)
    assert not learner.attends

    def fail() -> None:
        raise AssertionError

    monkeypatch.setattr("metamirror.core.predictor.plain_attention", fail)
    learner.meta_loss(TASKS)


def test_one_thread_does_not_end_what_another_one_needs():
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with plain_attention():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with plain_attention():
        thread.start()
        inside.wait(10)
    assert not torch.backends.cuda.flash_sdp_enabled()
    leave.set()
    thread.join()
    assert torch.backends.cuda.flash_sdp_enabled()


REFUSED = {
    "a bag": (
        lambda: Wrapped(nn.EmbeddingBag(10, 6)),
        {},
        r"body \(EmbeddingBag\) twice.*nn.Embedding and a mean.*adjoint='first'.*adapts",
    ),
    "a bag under vmap": (
        lambda: Wrapped(nn.EmbeddingBag(10, 6)),
        {"vectorize": True},
        r"body \(EmbeddingBag\) twice",
    ),
    "a recurrent network under vmap": (
        lambda: Wrapped(nn.LSTM(6, 6, batch_first=True)),
        {"vectorize": True},
        r"body \(LSTM\) under torch.func.vmap.*a cell of nn.Linear.*leave vectorize off",
    ),
    "a gated one under vmap": (
        lambda: Wrapped(nn.GRU(6, 6, batch_first=True)),
        {"vectorize": True, "adjoint": "first"},
        r"body \(GRU\) under torch.func.vmap.*leave vectorize off",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_cannot_do_is_named_before_the_first_step(case: str):
    build, settings, words = REFUSED[case]
    tasks = TOKENS if "bag" in case else TASKS

    def train() -> None:
        mm.make_learner("maml", build().double(), steps=2, **settings).meta_loss(tasks)

    with pytest.raises(ValueError, match=words) as caught:
        train()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way_out", [{"adjoint": "first"}, {"adapts": "head"}, {"steps": 0}])
def test_the_ways_out_are_ways_out(way_out):
    model = Wrapped(nn.EmbeddingBag(10, 6)).double()
    learner = mm.make_learner("maml", model, **{"steps": 2, **way_out})
    check_learner_gradient(learner, TOKENS) if "adjoint" not in way_out else None
    assert all(g.isfinite().all() for g in meta_gradient(learner, TOKENS).values())


def test_recurrent_networks_work_one_task_after_the_other():
    torch.manual_seed(0)
    model = Wrapped(nn.LSTM(6, 6, batch_first=True)).double()
    check_learner_gradient(mm.make_learner("maml", model, steps=2, lr=0.1), TASKS)


def test_a_trial_changes_nothing_that_is_random():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Dropout(0.5), nn.Linear(8, WAYS))
    learner = mm.make_learner("maml", model.double(), steps=1)
    torch.manual_seed(0)
    first = learner.meta_loss(TASKS)
    torch.manual_seed(0)
    assert torch.equal(learner.meta_loss(TASKS), first)


def test_a_model_that_cannot_be_called_keeps_its_own_message():
    learner = mm.make_learner("maml", nn.Sequential(nn.Linear(5, WAYS)).double())
    assert_refused(lambda: learner.meta_loss(TASKS), "does not take an example of shape")


def test_the_curvature_of_a_model_with_attention_can_be_measured():
    model, support = ATTENTION["function"](), mm.Batch(*(t[0] for t in TASKS.support))
    learner = mm.make_learner("maml", model)
    theta = {name: p.detach() for name, p in learner.theta().items()}
    found = loss_smoothness(learner, theta, support, theta, iterations=60)
    flat = torch.cat([p.flatten() for p in theta.values()])
    lower = learner.lower_level(support)

    def loss(vector):
        parts = vector.split([p.numel() for p in theta.values()])
        return lower.loss({n: v.view_as(theta[n]) for n, v in zip(theta, parts, strict=True)})

    exact = torch.linalg.eigvalsh(torch.func.hessian(loss)(flat)).abs().max()
    assert found == pytest.approx(float(exact), rel=1e-6)
