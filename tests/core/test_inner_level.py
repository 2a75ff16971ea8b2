"""The inner level: what it computes and what it keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.testing.networks import smooth_conv, smooth_mlp
from tests.comparing import ByHand, assert_same_params, one
from tests.networks import image_tasks, point_tasks, shaken

methods = pytest.mark.parametrize("method", mm.METHODS)


# metalstm's forget gate shrinks the parameters whatever the step size.
@pytest.mark.parametrize("method", [m for m in mm.METHODS if m != "metalstm"])
def test_a_step_size_of_zero_leaves_parameters_unchanged(method: str):
    learner = mm.make_learner(method, smooth_mlp(), steps=3)
    support = one(point_tasks().support)
    start = learner.geometry.primal(learner.begin(support, seed=0))
    adapted = learner.adapt(support, lr=0.0, seed=0)
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
