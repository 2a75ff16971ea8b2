"""Tasks under vmap, in chunks that memory allows."""

from __future__ import annotations

import pytest
import torch

import metamirror as mm
from metamirror.core import stacks


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("method", ["maml", "mtnet", "blockiaf"])
def test_chunks_give_the_gradient_of_all_tasks_at_once(method, listed, monkeypatch):
    torch.manual_seed(0)
    learner = mm.make_learner(method, mm.models.MLP(1, 1).double(), lr=0.1, vectorize=True)
    stack = mm.tasks("sinusoid", shots=5, batch=5)[0]
    tasks = stacks.split_tasks(stack) if listed else stack
    seeds = list(range(5))
    at_once, expected = learner.meta_gradient(tasks, seeds=seeds)
    counts = []
    together = learner._together

    def counted(chunk, noise):
        counts.append(len(noise))
        return together(chunk, noise)

    monkeypatch.setattr(learner, "_together", counted)
    numbers = sum(p.numel() for p in learner.theta().values()) * (learner.steps + 1)
    monkeypatch.setattr(stacks, "MEMORY", int(2.5 * stacks.COPIES * 8 * numbers))
    in_chunks, found = learner.meta_gradient(tasks, seeds=seeds)
    assert counts == [2, 2, 1]
    for one, other in zip([*in_chunks, *found], [*at_once, *expected], strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12, equal_nan=True)
