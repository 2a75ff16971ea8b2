"""First-order MAML is MAML in value, with another meta-gradient."""

from __future__ import annotations

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import metamirror as mm
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from tests.networks import point_tasks

STEPS, LR = 3, 0.1


def learner(spec: str) -> mm.Learner:
    return mm.make_learner(spec, smooth_mlp(), steps=STEPS, lr=LR)


def test_its_value_is_maml_s():
    tasks = point_tasks()
    assert torch.equal(learner("fomaml").meta_loss(tasks), learner("maml").meta_loss(tasks))


def test_its_gradient_is_that_of_the_query_loss_at_the_adapted_parameters():
    found, tasks = meta_gradient(learner("fomaml"), point_tasks()), point_tasks()
    model = smooth_mlp()
    names = [name for name, _ in model.named_parameters()]
    total = dict.fromkeys(names, 0.0)
    (sx, sy), (qx, qy) = tasks
    for t in range(len(sx)):
        phi = [p.detach().requires_grad_() for p in model.parameters()]
        for x, y in [(sx[t], sy[t])] * STEPS:
            loss = cross_entropy(functional_call(model, dict(zip(names, phi, strict=True)), x), y)
            grads = torch.autograd.grad(loss, phi)
            phi = [(p - LR * g).detach().requires_grad_() for p, g in zip(phi, grads, strict=True)]
        last = cross_entropy(
            functional_call(model, dict(zip(names, phi, strict=True)), qx[t]), qy[t]
        )
        for name, g in zip(names, torch.autograd.grad(last, phi), strict=True):
            total[name] = total[name] + g / len(sx)
    assert relative_difference(found, {f"model.{name}": g for name, g in total.items()}) < 1e-13


def test_unrolled_it_is_maml():
    tasks = point_tasks()
    second, first = meta_gradient(learner("maml"), tasks), meta_gradient(learner("fomaml"), tasks)
    assert relative_difference(first, second) > 1e-3
    assert (
        relative_difference(meta_gradient(learner("fomaml:adjoint=unrolled"), tasks), second) == 0
    )
