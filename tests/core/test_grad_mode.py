"""Where the caller has switched gradients off, the inner loop still has its own."""

from __future__ import annotations

import pytest
import torch

import metamirror as mm
from metamirror.testing.networks import smooth_mlp
from tests.networks import conv4, image_tasks, point_tasks
from tests.refusals import assert_refused
from tests.table import ROWS

MODES = [torch.no_grad, torch.inference_mode]
SPECS = [row.spec for row in ROWS]
ADJOINTS = ["maml:adjoint=first", "maml:adjoint=rematerialised"]

modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
specs = pytest.mark.parametrize("spec", [*SPECS, *ADJOINTS])


def learner_for(spec: str, **options) -> mm.Learner:
    torch.manual_seed(0)
    return mm.make_learner(spec, smooth_mlp(), **{"steps": 2, "lr": 0.1, **options})


def one_task() -> mm.Task:
    return mm.Task(*(mm.Batch(batch.x[0], batch.y[0]) for batch in point_tasks()))


@modes
@specs
def test_the_loss_is_the_same_and_has_no_graph(spec, mode):
    expected = learner_for(spec).task_losses(point_tasks(), seeds=[0, 1])
    learner = learner_for(spec)  # one that was never used before
    with mode():
        found = learner.task_losses(point_tasks(), seeds=[0, 1])
        assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
        assert not torch.is_grad_enabled()
    for value, right in zip(found, expected, strict=True):
        assert not value.requires_grad
        torch.testing.assert_close(value.clone(), right.detach(), rtol=1e-9, atol=1e-12)


@modes
@pytest.mark.parametrize("options", [{}, {"vectorize": True}], ids=["loop", "vmap"])
@pytest.mark.parametrize("spec", ["maml", "blockiaf", "protomaml", "warpgrad"])
def test_the_meta_gradient_is_the_same(spec, options, mode):
    (expected, _), gradient = learner_for(spec, **options).meta_gradient(point_tasks())
    learner = learner_for(spec, **options)
    with mode():
        (losses, _), found = learner.meta_gradient(point_tasks())
    torch.testing.assert_close(losses, expected)
    for own, right in zip(found, gradient, strict=True):
        torch.testing.assert_close(own, right)
    assert any(own.any() for own in found)


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@modes
@pytest.mark.usefixtures("_two_threads")
def test_threads_that_share_the_tasks_have_gradients_too(mode):
    learner = mm.make_learner("maml", conv4(), steps=1, lr=0.1)
    _, expected = learner.meta_gradient(image_tasks(size=16))
    with mode():
        _, found = learner.meta_gradient(image_tasks(size=16))
    torch.testing.assert_close(found, expected)


@modes
@specs
def test_adapting_is_the_same(spec, mode):
    task = one_task()
    expected = learner_for(spec).adapt(task.support, seed=0)(task.query.x)
    learner = learner_for(spec)
    with mode():
        task = one_task()
        torch.testing.assert_close(
            learner.adapt(task.support, seed=0)(task.query.x).clone(), expected
        )
        for adapted in learner.adaptations(task.support, seed=0):
            assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
            last = adapted(task.query.x)
    torch.testing.assert_close(last.clone(), expected)


@modes
def test_evaluating_is_the_same(mode):
    learner = mm.make_learner("metasgd", mm.models.MLP(1, 1))
    expected = mm.evaluate(learner, mm.tasks("sinusoid", "test"), n=3)
    with mode():
        assert mm.evaluate(learner, mm.tasks("sinusoid", "test"), n=3) == expected


def test_no_graph_is_kept_where_nobody_differentiates():
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    learner = learner_for("maml", steps=5)
    with torch.no_grad():
        learner.meta_loss(point_tasks())  # the trial of its derivatives
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            learner.meta_loss(point_tasks())
            without = len(kept)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.meta_loss(point_tasks())
    assert 0 < without < (len(kept) - without) / 2


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_inputs_made_under_inference_mode_may_be_trees(kind):
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(6, 3).double()

        def forward(self, a, b):
            return self.head(a + b)

    def tasks():
        def batch(x, y):
            return mm.Batch((x, x) if kind == "tuple" else {"a": x, "b": x}, y)

        return mm.Task(*(batch(*part) for part in point_tasks()))

    learner = mm.make_learner("maml", Sum())
    with torch.inference_mode():
        made = tasks()
        found = learner.meta_loss(made)
    assert torch.equal(found, learner.meta_loss(tasks()))
    assert torch.equal(learner.meta_loss(made), found)  # and outside


def test_what_cannot_be_differentiated_is_named():
    learner = learner_for("maml")
    with torch.inference_mode():
        episode = learner.episode(one_task())
        assert_refused(episode.descend, "use torch.no_grad")
        made_there = learner_for("maml")
    assert_refused(lambda: made_there.meta_loss(point_tasks()), "outside of it")
    assert_refused(lambda: made_there.adapt(one_task().support), "outside of it")
