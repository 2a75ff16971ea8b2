"""Reptile against its formula, written again with plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import metamirror as mm
from metamirror.methods.reptile import TowardsAdapted, minibatch, shuffled
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from tests.networks import point_tasks

LR = 0.1


def learner(batch: int, steps: int) -> mm.Learner:
    return mm.make_learner("reptile", smooth_mlp(), batch=batch, steps=steps, lr=LR)


def adapted_by_hand(tasks: mm.Task, batch: int, steps: int) -> list[dict[str, torch.Tensor]]:
    """phi after steps on minibatches of all examples of a task, in the order of the method."""
    model, found = smooth_mlp(), []
    for sx, sy, qx, qy in zip(*tasks.support, *tasks.query, strict=True):
        x, y = torch.cat([sx, qx]), torch.cat([sy, qy])
        golden = (1 + math.sqrt(5)) / 2
        order = sorted(range(len(y)), key=lambda i: i * golden - math.floor(i * golden))
        queue = order * steps
        phi = {name: p.detach() for name, p in model.named_parameters()}
        for _ in range(steps):
            chosen, queue = queue[: min(batch, len(y))], queue[min(batch, len(y)) :]
            leaves = {name: p.clone().requires_grad_() for name, p in phi.items()}
            loss = cross_entropy(functional_call(model, leaves, x[chosen]), y[chosen])
            grads = torch.autograd.grad(loss, list(leaves.values()))
            phi = {n: p.detach() - LR * g for (n, p), g in zip(leaves.items(), grads, strict=True)}
        found.append(phi)
    return found


@pytest.mark.parametrize(("batch", "steps"), [(4, 5), (6, 1), (7, 4), (1000, 3)])
def test_its_gradient_is_the_mean_way_back_to_the_start(batch: int, steps: int):
    tasks = point_tasks()
    adapted = adapted_by_hand(tasks, batch, steps)
    start = dict(smooth_mlp().named_parameters())
    expected = {
        f"model.{name}": sum(p.detach() - phi[name] for phi in adapted) / len(adapted)
        for name, p in start.items()
    }
    found = meta_gradient(learner(batch, steps), tasks)
    assert relative_difference(found, expected) < 1e-12


def test_one_step_on_the_whole_set_is_joint_training():
    (sx, sy), (qx, qy) = tasks = point_tasks(count=1)
    model = smooth_mlp()
    x, y = torch.cat([sx[0], qx[0]]), torch.cat([sy[0], qy[0]])
    loss = cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    names = [f"model.{name}" for name, _ in model.named_parameters()]
    expected = {name: LR * g for name, g in zip(names, grads, strict=True)}
    assert relative_difference(meta_gradient(learner(1000, 1), tasks), expected) < 1e-12


def test_a_step_of_sgd_moves_the_start_towards_the_mean_of_the_adapted():
    tasks, rate = point_tasks(), 0.3
    reptile = learner(5, 4)
    start = {name: p.detach().clone() for name, p in reptile.model.named_parameters()}
    optimizer = torch.optim.SGD(reptile.parameters(), lr=rate)
    reptile.meta_loss(tasks).backward()
    optimizer.step()
    adapted = adapted_by_hand(tasks, 5, 4)
    for name, p in reptile.model.named_parameters():
        mean = torch.stack([phi[name] for phi in adapted]).mean(0)
        torch.testing.assert_close(p.detach(), start[name] + rate * (mean - start[name]))


def test_its_value_is_the_query_loss_of_the_adapted():
    tasks = point_tasks()
    model, (qx, qy) = smooth_mlp(), tasks.query
    losses = [
        cross_entropy(functional_call(model, phi, x), y)
        for phi, x, y in zip(adapted_by_hand(tasks, 4, 3), qx, qy, strict=True)
    ]
    torch.testing.assert_close(learner(4, 3).meta_loss(tasks), torch.stack(losses).mean())


@pytest.mark.parametrize("count", [1, 7, 30, 80])
@pytest.mark.parametrize("size", [1, 5, 10])
def test_every_example_comes_once_before_any_comes_again(count: int, size: int):
    order, size = shuffled(count), min(size, count)
    steps = 3 * count
    seen = [i for k in range(steps) for i in minibatch(order, k, size)]
    assert len(seen) == steps * size
    rounds = [seen[i : i + count] for i in range(0, len(seen), count)]
    assert all(sorted(one) == list(range(count)) for one in rounds)


def test_minibatches_hold_all_classes_however_the_examples_are_sorted():
    for label in (lambda i: i % 5, lambda i: i // 16, lambda i: (i // 2) % 5 if i < 10 else i % 5):
        for k in range(8):
            chosen = minibatch(shuffled(80), k, 10)
            assert len({label(i) for i in chosen}) >= 4


def test_what_reptile_cannot_learn_is_refused():
    learner = mm.make_learner("reptile", smooth_mlp(), prior="diagonal:0.1")
    with pytest.raises(ValueError, match=r"the prior Diagonal has parameters to learn"):
        learner.meta_loss(point_tasks())
    learned = mm.make_learner("metasgd", smooth_mlp())
    learned.objective = TowardsAdapted(5)
    with pytest.raises(ValueError, match=r"the geometry DiagonalGeometry has parameters to learn"):
        learned.meta_loss(point_tasks())


def test_an_isotropic_prior_pulls_towards_the_start():
    near, far = (
        meta_gradient(
            mm.make_learner("reptile", smooth_mlp(), prior=prior, batch=5, steps=6, lr=LR),
            point_tasks(),
        )
        for prior in ("isotropic:3.0", None)
    )
    assert sum(g.norm() for g in near.values()) < 0.9 * sum(g.norm() for g in far.values())


def test_a_minibatch_has_an_example():
    with pytest.raises(ValueError, match=r"reptile:batch is 0; it must be at least 1"):
        mm.make_learner("reptile:batch=0", smooth_mlp())
