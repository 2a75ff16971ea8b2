"""The outer level: step sizes, clipping, and a meta-gradient that ranks share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

import metamirror as mm
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.distributed import Ranks
from metamirror.training.factory import build_learner, build_stream
from metamirror.training.outer_step import (
    OuterGradient,
    build_optimizer,
    clip,
    decay,
    descend,
    meta_gradient,
)
from tests.runs import small, small_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Heard(Ranks):
    """One of several ranks, alone in a process: what it says is kept for a sum."""

    said: list[Tensor] = field(default_factory=list)

    def all_reduce(self, values: Tensor) -> Tensor:
        self.said.append(values.clone())
        return values


def gradient(method: str, tasks: int, ranks: Ranks) -> OuterGradient:
    # The conditions of a support vector machine magnify the rounding of stacks of other sizes.
    together = {"vectorize": False} if method == "metaoptnet" else {}
    config = small_of(method, tasks_per_step=tasks, dtype="float64", **together)
    stream = build_stream(config, "train")
    learner = build_learner(config, stream)
    return meta_gradient(learner, parameters_of(build_optimizer(config, learner)), stream, 3, ranks)


@pytest.mark.parametrize("method", mm.METHODS)
@pytest.mark.parametrize(("tasks", "world"), [(4, 2), (5, 3), (2, 3)])
def test_ranks_add_up_to_the_meta_gradient_of_one(method: str, tasks: int, world: int):
    alone = gradient(method, tasks, Ranks(CPU))
    said: list[Tensor] = []
    for rank in range(world):
        gradient(method, tasks, Heard(CPU, rank, world, said=said))
    together = torch.stack(said).sum(0)
    torch.testing.assert_close(together[: len(alone.flat)], alone.flat, rtol=0, atol=1e-10)
    assert together[len(alone.flat)].item() == pytest.approx(alone.loss, abs=1e-10)


def test_the_meta_gradient_is_that_of_the_meta_loss():
    config = small(method="mtnet", dtype="float64")
    stream = build_stream(config, "train")
    learner = build_learner(config, stream)
    parameters = parameters_of(build_optimizer(config, learner))
    found = meta_gradient(learner, parameters, stream, 2, Ranks(CPU))
    tasks = stream[2]
    tasks = mm.Task(*(mm.Batch(x.double(), y.double()) for x, y in tasks))
    loss = learner.meta_loss(tasks, seeds=stream.seeds(2))
    grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
    assert torch.equal(found.flat, torch.cat([g.flatten() for g in grads]))
    assert found.loss == loss.item()
    assert found.score == pytest.approx(found.loss)  # its metric is the squared error


@pytest.mark.parametrize("stops", [(False, False), (False, True)])
def test_one_rank_that_is_asked_to_stop_stops_all(stops: tuple[bool, bool]):
    config = small()
    stream = build_stream(config, "train")
    learner = build_learner(config, stream)
    parameters = parameters_of(build_optimizer(config, learner))
    said: list[Tensor] = []
    for rank, stop in enumerate(stops):
        meta_gradient(learner, parameters, stream, 0, Heard(CPU, rank, 2, said=said), stop=stop)
    assert bool(torch.stack(said).sum(0)[-1] > 0) is any(stops)


@pytest.mark.parametrize(
    ("changes", "adjoint", "vectorize"),
    [
        ({}, "unrolled", True),
        ({"recompute": True}, "rematerialised", False),
        ({"method": "maml:adjoint=rematerialised"}, "rematerialised", False),
        ({"autocast": "bf16"}, "unrolled", False),
        ({"first_order": True, "recompute": True}, "first", True),
    ],
)
def test_tasks_are_vectorised_where_the_adjoint_can_be(changes, adjoint: str, vectorize: bool):
    config = small(**changes)
    settings = build_learner(config, build_stream(config, "train")).settings
    assert (settings.adjoint.name, settings.vectorize) == (adjoint, vectorize)


@pytest.mark.parametrize(
    ("changes", "threads", "stacked"),
    [
        ({}, 1, True),
        ({}, 2, False),  # tasks side by side are faster
        ({"tasks_per_step": 2}, 1, False),
        ({"tasks_per_step": 16}, 1, False),
        ({"image_size": 84}, 1, False),
        ({"model": "resnet12"}, 1, False),
        ({"vectorize": True, "image_size": 84}, 2, True),
    ],
)
def test_convolutions_are_vectorised_where_that_is_faster(changes, threads: int, stacked: bool):
    config = replace(
        small(data="glyphs", model="conv4", image_size=28, width=4, tasks_per_step=4), **changes
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        learner = build_learner(config, build_stream(config, "train"))
    finally:
        torch.set_num_threads(before)
    assert learner.settings.vectorize == stacked


def test_start_and_geometry_have_step_sizes_of_their_own():
    config = small(method="metasgd", optimizer="sgd", outer_lr=0.5, geometry_lr=0.25, momentum=0.0)
    learner = build_learner(config, build_stream(config, "train"))
    optimizer = build_optimizer(config, learner)
    before = {n: p.detach().clone() for n, p in learner.named_parameters()}
    count = sum(p.numel() for p in learner.parameters())
    descend(optimizer, torch.ones(count), 0.5)
    for name, p in learner.named_parameters():
        moved = 0.25 if name.startswith("model.") else 0.125
        torch.testing.assert_close(before[name] - p.detach(), torch.full_like(p, moved))


def test_sgd_is_nesterovs_unless_it_has_no_momentum():
    learner = build_learner(small(), build_stream(small(), "train"))
    for momentum in (0.9, 0.0):
        made = build_optimizer(small(optimizer="sgd", momentum=momentum), learner)
        assert made.defaults["nesterov"] is (momentum > 0)
        assert made.defaults["momentum"] == momentum


def test_step_sizes_fall_as_the_schedule_says():
    steps = (0, 3, 4, 7, 8, 11)
    step = small(schedule="step", decay_every=4, decay_factor=0.1)
    assert [decay(step, s) for s in steps] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    cosine = small(schedule="cosine", iterations=10)
    assert [decay(cosine, s) for s in (0, 5, 10)] == pytest.approx([1, 0.5, 0])
    assert {decay(small(), s) for s in steps} == {1.0}


def test_clipping_limits_the_norm_and_the_entries():
    flat = torch.tensor([3.0, -4.0])
    clip(flat, small(clip_norm=1.0))
    torch.testing.assert_close(flat, torch.tensor([0.6, -0.8]))
    clip(flat, small(clip_norm=5.0))
    torch.testing.assert_close(flat, torch.tensor([0.6, -0.8]))
    clip(flat, small(clip_value=0.7))
    torch.testing.assert_close(flat, torch.tensor([0.6, -0.7]))


def test_warp_layers_follow_the_rate_of_the_geometry():
    config = small(method="warpgrad", geometry_lr=0.5, outer_lr=0.001)
    learner = build_learner(config, build_stream(config, "train"))
    optimizer = build_optimizer(config, learner)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    found = {name: rates[id(p)] for name, p in learner.named_parameters() if p.requires_grad}
    assert {rate for name, rate in found.items() if "warp" in name} == {0.5}
    assert {rate for name, rate in found.items() if "warp" not in name} == {0.001}


def test_a_rate_for_a_geometry_that_does_not_exist_is_refused():
    config = small(method="maml", geometry_lr=0.5)
    with pytest.raises(ValueError, match="maml has no geometry parameters"):
        build_optimizer(config, build_learner(config, build_stream(config, "train")))
