import copy
import itertools

import pytest
import torch

import metamirror as mm
from metamirror.methods.warpgrad import Options, Warp
from metamirror.testing.methods import meta_gradient
from metamirror.testing.networks import smooth_conv, smooth_mlp
from tests.networks import image_tasks, point_tasks, shaken


def test_adaptation_never_touches_the_warps():
    learner = shaken(mm.make_learner("warpgrad", smooth_conv(), steps=5, lr=0.1))
    adapted = learner.adapt(mm.Batch(*(t[0] for t in image_tasks().support)))
    assert not any("warp." in name for name in adapted.params)
    assert len(adapted.params) == len(list(smooth_conv().parameters()))


def test_one_step_joint_gradient_of_the_warps_equals_the_replay_at_the_start():
    tasks = point_tasks()
    joint, replay = (
        shaken(mm.make_learner("warpgrad", smooth_mlp(), steps=1, lr=0.1, objective=objective))
        for objective in ("joint", "trajectory")
    )
    a, b = meta_gradient(joint, tasks), meta_gradient(replay, tasks)
    warps = [name for name in a if "warp." in name]
    assert warps
    for name in warps:
        torch.testing.assert_close(a[name], b[name], rtol=1e-10, atol=1e-14)


def test_leap_moves_the_start_along_the_path():
    tasks = point_tasks(count=1)
    learner = shaken(
        mm.make_learner("warpgrad:objective=trajectory", smooth_mlp(), steps=4, lr=0.1)
    )
    path = learner.adapt(mm.Batch(*(t[0] for t in tasks.support)), keep=True).path
    found = meta_gradient(learner, tasks)
    for name in learner.adapts:
        expected = 0.0
        for before, after in zip(path.points, path.points[1:], strict=False):
            length = sum(float((before[n] - after[n]).square().sum()) for n in before) ** 0.5
            expected = expected + (before[name] - after[name]) / length
        torch.testing.assert_close(found[f"model.{name}"], expected, rtol=1e-10, atol=1e-13)


def test_the_hybrid_gives_the_start_the_gradient_of_maml():
    tasks = point_tasks()
    joint, hybrid = (
        shaken(mm.make_learner(f"warpgrad{options}", smooth_mlp(), steps=3, lr=0.1))
        for options in ("", ":objective=trajectory:start_rule=maml")
    )
    a, b = meta_gradient(joint, tasks), meta_gradient(hybrid, tasks)
    for name in joint.adapts:
        torch.testing.assert_close(a[f"model.{name}"], b[f"model.{name}"], rtol=1e-10, atol=1e-14)
    replay = meta_gradient(
        shaken(mm.make_learner("warpgrad:objective=trajectory", smooth_mlp(), steps=3, lr=0.1)),
        tasks,
    )
    for name in (n for n in b if "warp." in n):
        torch.testing.assert_close(b[name], replay[name], rtol=1e-10, atol=1e-14)


def test_a_replayed_step_is_the_step_that_was_taken():
    """Also under a prior, whose centre is the start of the task and not the point replayed."""
    learner = shaken(
        mm.make_learner(
            "warpgrad:objective=trajectory", smooth_mlp(), steps=3, lr=0.1, prior="isotropic:5.0"
        )
    )
    support = mm.Batch(*(t[0] for t in point_tasks().support))
    path = learner.adapt(support, keep=True).path
    for k in range(3):
        lower = learner.lower_level(support)
        again = learner.descend(lower, path.states[k], steps=1, phi0=path.points[0])
        for name, phi in path.points[k + 1].items():
            torch.testing.assert_close(again.phi[name], phi, rtol=0, atol=1e-13)
    tasks = mm.Task(mm.Batch(*(t[None] for t in support)), mm.Batch(*(t[None] for t in support)))
    task = mm.Task(support, support)
    losses = [learner.episode(task).query_loss(phi) for phi in path.points[1:]]
    torch.testing.assert_close(learner.meta_loss(tasks), torch.stack(losses).mean())


def test_options_decorate_a_warp():
    x = torch.randn(7, 4)
    for residual, activation in itertools.product((False, True), repeat=2):
        options = Options(residual=residual, activation=activation)
        warp = Warp(4, torch.nn.Linear, options)
        torch.testing.assert_close(warp(x), x.relu() if activation else x)
        torch.nn.init.normal_(warp.map.weight)
        expected = warp.map(x) + (x if residual else 0)
        torch.testing.assert_close(warp(x), expected.relu() if activation else expected)


@pytest.mark.parametrize("kind", [torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d])
def test_convolutions_of_every_dimension_are_warped(kind):
    model = torch.nn.Sequential(kind(1, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Flatten())
    axes = model[0].weight.dim() - 2
    x = torch.randn(2, 1, *[4] * axes)
    learner = mm.make_learner("warpgrad", model, warp_after=["1"])
    torch.testing.assert_close(learner.model(x), model(x))
    assert type(learner.model[1].warp.map) is kind


def test_without_the_step_a_visited_point_is_judged_as_it_is():
    tasks = point_tasks(count=1)
    learner = mm.make_learner(
        "warpgrad:objective=trajectory:approximate=true", smooth_mlp(), steps=3, lr=0.1
    )
    path = learner.adapt(mm.Batch(*(t[0] for t in tasks.support)), keep=True).path
    task = mm.Task(*(mm.Batch(*(t[0] for t in b)) for b in tasks))
    losses = [learner.episode(task).query_loss(phi) for phi in path.points[:-1]]
    torch.testing.assert_close(learner.meta_loss(tasks), torch.stack(losses).mean())


def test_a_copy_of_a_warped_model_runs_with_its_own_warps():
    learner = mm.make_learner("warpgrad", smooth_mlp())
    twin = copy.deepcopy(learner)
    x = point_tasks().support.x[0]
    before = learner.model(x)
    with torch.no_grad():
        for name, p in twin.model.named_parameters():
            if "warp." in name:
                p.fill_(0.5)
    assert torch.equal(learner.model(x), before)
    assert not torch.equal(twin.model(x), before)


def test_modules_named_by_the_user_are_warped():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body_part = torch.nn.Linear(6, 5)
            self.act = torch.nn.Tanh()
            self.top = torch.nn.Linear(5, 3)

        def forward(self, x):
            return self.top(self.act(self.body_part(x)))

    learner = mm.make_learner("warpgrad", Own().double(), warp_after=["body_part"], lr=0.1)
    warps = [tuple(p.shape) for n, p in learner.model.named_parameters() if "warp." in n]
    assert warps == [(5, 5), (5,)]
    learner.meta_loss(point_tasks()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learner.parameters())


def test_a_sequential_model_is_warped_behind_its_parts():
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())
    model = torch.nn.Sequential(inner, torch.nn.Linear(5, 3)).double()
    learner = shaken(mm.make_learner("warpgrad", model, warp_after=["0", "1"]))
    x = point_tasks().support.x[0]
    body, warp = learner.model[0][:2], learner.model[0][2]
    head = learner.model[1]
    hidden = warp.map(body(x))
    expected = head.warp.map(torch.nn.functional.linear(hidden, head.weight, head.bias))
    torch.testing.assert_close(learner.model(x), expected)
    assert set(learner.adapts) == {n for n, _ in model.named_parameters()}


def test_without_a_step_there_is_only_the_start_to_judge():
    learner = mm.make_learner("warpgrad:objective=trajectory", smooth_mlp(), steps=0)
    maml = mm.make_learner("maml", smooth_mlp(), steps=0)
    tasks = point_tasks()
    replayed = learner.meta_loss(tasks)
    # The start is judged by one further step, as every visited point is.
    one = mm.make_learner("maml", smooth_mlp(), steps=1).meta_loss(tasks)
    torch.testing.assert_close(replayed, one)
    assert not torch.equal(replayed, maml.meta_loss(tasks))
