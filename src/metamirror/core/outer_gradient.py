"""The meta-gradient, task by task, so that each task's graph is freed before the next begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metamirror.core.task_threads import over_tasks
from metamirror.core.tasks import Params, Task
from metamirror.core.trees import tensors_in, with_tensors

if TYPE_CHECKING:
    from metamirror.core.learner import Learner
    from metamirror.parallel.processes import Crew

Gradients = list[Tensor | None]


class Prepared:
    """What the tasks of an outer step share, cut off from its graph for the tasks' sake.

    Each task differentiates as far as the cut; one backward for all of them does the rest.
    """

    def __init__(self, prepared: Mapping[str, Any]):
        tensors = tensors_in(prepared)
        cut = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        self.value: Mapping[str, Any] = with_tensors(prepared, cut)
        self.ends = [t for t in tensors if t.requires_grad]
        self.leaves = [leaf for leaf in cut if leaf.requires_grad]

    def gradients(self, by_leaves: Gradients, parameters: Sequence[Tensor]) -> Gradients:
        """What the parameters get through the prepared values."""
        reached = [(e, g) for e, g in zip(self.ends, by_leaves, strict=True) if g is not None]
        if not reached:
            return [None] * len(parameters)
        ends, grads = zip(*reached, strict=True)
        return list(torch.autograd.grad(ends, tuple(parameters), grads, allow_unused=True))


def task_gradient(
    learner: Learner,
    prepared: Prepared,
    task: Task,
    noise: Params,
    parameters: Sequence[Tensor],
) -> Gradients:
    """One task's objective and accuracy, and its gradient as far as the cut."""
    state = learner.geometry.begin(learner.start(), prepared.value, noise)
    loss, accuracy = learner.task_loss(task, state)
    inputs = (*parameters, *prepared.leaves)
    return [loss.detach(), accuracy, *torch.autograd.grad(loss, inputs, allow_unused=True)]


def sum_of_gradients(
    learner: Learner,
    tasks: Sequence[Task],
    noise: Sequence[Params],
    parameters: Sequence[Tensor],
    crew: Crew | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Each task's objective and accuracy, and the gradient of the objectives' sum."""
    found: Iterable[Gradients]
    if crew is not None:
        prepared, found = crew.gradients(learner, tasks, noise, parameters)
    else:
        prepared = Prepared(learner.prepare())

        def one(double: Learner, i: int) -> Gradients:
            return task_gradient(double, prepared, tasks[i], noise[i], parameters)

        found = over_tasks(learner, one, range(len(tasks)))
    total: Gradients = [None] * (len(parameters) + len(prepared.leaves))
    losses: list[Tensor] = []
    accuracies: list[Tensor] = []
    for loss, accuracy, *grads in found:
        assert loss is not None
        assert accuracy is not None
        losses.append(loss)
        accuracies.append(accuracy)
        total = [_added(a, b) for a, b in zip(total, grads, strict=True)]
    direct, by_leaves = total[: len(parameters)], total[len(parameters) :]
    through = prepared.gradients(by_leaves, parameters)
    whole = [_added(a, b) for a, b in zip(direct, through, strict=True)]
    return (
        torch.stack(losses),
        torch.stack(accuracies),
        [torch.zeros_like(p) if g is None else g for g, p in zip(whole, parameters, strict=True)],
    )


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
