"""How learners are compared, with each other and with descent written by hand."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import metamirror as mm


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
