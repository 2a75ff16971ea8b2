import copy

import torch

import metamirror as mm
from networks import image_tasks, meta_gradient, point_tasks, shaken, smooth_conv, smooth_mlp


def test_adaptation_never_touches_the_warps():
    learner = shaken(mm.make_learner("warpgrad", smooth_conv(), steps=5, lr=0.1))
    adapted = learner.adapt(mm.Batch(*(t[0] for t in image_tasks().support)))
    assert not any(name.startswith("warps.") for name in adapted.params)
    assert len(adapted.params) == len(list(smooth_conv().parameters()))


def test_one_step_joint_gradient_of_the_warps_equals_the_replay_at_the_start():
    tasks = point_tasks()
    joint, replay = (
        shaken(mm.make_learner("warpgrad", smooth_mlp(), steps=1, lr=0.1, objective=objective))
        for objective in ("joint", "trajectory")
    )
    a, b = meta_gradient(joint, tasks), meta_gradient(replay, tasks)
    warps = [name for name in a if "warps" in name]
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
        for options in ("", ":objective=trajectory:start=maml")
    )
    a, b = meta_gradient(joint, tasks), meta_gradient(hybrid, tasks)
    for name in joint.adapts:
        torch.testing.assert_close(a[f"model.{name}"], b[f"model.{name}"], rtol=1e-10, atol=1e-14)


def test_without_the_step_a_visited_point_is_judged_as_it_is():
    tasks = point_tasks(count=1)
    learner = mm.make_learner(
        "warpgrad:objective=trajectory:approximate=true", smooth_mlp(), steps=3, lr=0.1
    )
    path = learner.adapt(mm.Batch(*(t[0] for t in tasks.support)), keep=True).path
    task = mm.Task(*(mm.Batch(*(t[0] for t in b)) for b in tasks))
    losses = [learner.query_loss(phi, task) for phi in path.points[:-1]]
    torch.testing.assert_close(learner.meta_loss(tasks), torch.stack(losses).mean())


def test_a_copy_of_a_warped_model_runs_with_its_own_warps():
    learner = mm.make_learner("warpgrad", smooth_mlp())
    twin = copy.deepcopy(learner)
    x = point_tasks().support.x[0]
    before = learner.model(x)
    with torch.no_grad():
        for p in twin.model.warps.parameters():
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
    assert [tuple(p.shape) for p in learner.model.warps.parameters()] == [(5, 5), (5,)]
    learner.meta_loss(point_tasks()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learner.parameters())
