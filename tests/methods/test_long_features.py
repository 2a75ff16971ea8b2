"""A linear head on long features: what all tasks share is neither copied nor formed per task."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import metamirror as mm
from metamirror.core.trees import tensors_in

D, TASKS, WAYS = 160, 6, 3
ROWS = ["maml", "metasgd", "mtnet", "warpgrad", "metacurvature", "metakfo", "metakfo:psd=false"]
ROWS += ["ecml", "blockiaf", "gradnet", "blockiaf:start=ridge", "metacurvature:start=prototypes"]


def tasks() -> mm.Task:
    generator = torch.Generator().manual_seed(1)

    def batch(shots: int) -> mm.Batch:
        x = torch.randn(TASKS, WAYS * shots, D, generator=generator, dtype=torch.float64)
        return mm.Batch(x, torch.arange(WAYS).repeat(shots).expand(TASKS, -1))

    return mm.Task(batch(1), batch(2))


def learner_of(row: str, *, vectorize: bool) -> mm.Learner:
    torch.manual_seed(0)
    model = mm.models.Linear(D, WAYS).double()
    learner = mm.make_learner(
        row, model, steps=3, lr=0.1, norm="inductive", adapts="head", vectorize=vectorize
    )
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(0.01 * torch.randn_like(p))
    return learner


@pytest.mark.parametrize("row", ROWS)
def test_tasks_at_once_have_the_meta_gradient_of_one_after_the_other(row: str) -> None:
    seeds = list(range(TASKS))
    (loss, score), grads = learner_of(row, vectorize=True).meta_gradient(tasks(), seeds=seeds)
    (alone, own), each = learner_of(row, vectorize=False).meta_gradient(tasks(), seeds=seeds)
    torch.testing.assert_close(loss, alone, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(score, own)
    for found, expected in zip(grads, each, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that an operation wrote."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for tensor in tensors_in(found if isinstance(found, tuple | list) else [found]):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes():
                written = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.numbers = max(self.numbers, written)
        return found


@pytest.mark.parametrize("row", ROWS)
def test_no_operation_writes_a_factor_for_each_task(row: str) -> None:
    learner, given = learner_of(row, vectorize=True), tasks()
    learner.meta_gradient(given)
    with Largest() as largest:
        learner.meta_gradient(given)
    assert largest.numbers <= max(D * D, given.query.x.numel())
