"""The meta-gradient, task by task, so that each task's graph is freed before the next begins."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from metamirror.core.task_threads import over_tasks
from metamirror.core.tasks import Params, Task
from metamirror.core.trees import pulled_back, tensors_in, with_tensors

Gradients = list[Tensor | None]


class TaskLosses(NamedTuple):
    """What the outer level sees of each task of a stack.

    `loss` is the objective, with its graph; `score` the metric on the query set where the objective
    last predicted it, such as the share of right labels, and NaN where there is none.
    """

    loss: Tensor
    score: Tensor


class TaskWorkers(Protocol):
    """Worker processes that share the tasks of an outer step, as `metamirror.TaskPool` does."""

    def gradients(
        self,
        learner: Any,
        tasks: Sequence[Task],
        noise: Sequence[Params],
        parameters: Sequence[Tensor],
    ) -> tuple["Prepared", list[Gradients]]:
        """Return what was prepared, and what `task_gradient` gives for each task, in order."""


class Prepared:
    """What the tasks of an outer step share, cut off from its graph for the tasks' sake.

    Each task differentiates as far as the cut; one backward for all of them does the rest.
    """

    def __init__(self, prepared: Any):
        tensors = tensors_in(prepared)
        cut = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        self.value = with_tensors(prepared, cut)
        self.ends = [t for t in tensors if t.requires_grad]
        self.leaves = [leaf for leaf in cut if leaf.requires_grad]


def task_gradient(
    learner: Any, prepared: Prepared, task: Task, noise: Params, parameters: Sequence[Tensor]
) -> Gradients:
    """Return one task's objective and score, and its gradient as far as the cut."""
    loss, score = learner.task_loss(task, prepared.value, noise)
    inputs = (*parameters, *prepared.leaves)
    return [loss.detach(), score, *torch.autograd.grad(loss, inputs, allow_unused=True)]


def sum_of_gradients(
    learner: Any,
    tasks: Sequence[Task],
    noise: Sequence[Params],
    parameters: Sequence[Tensor],
    workers: TaskWorkers | None = None,
) -> tuple[TaskLosses, list[Tensor]]:
    """Return each task's objective and score, and the gradient of the objectives' sum."""
    found: Iterable[Gradients]
    if workers is not None:
        prepared, found = workers.gradients(learner, tasks, noise, parameters)
    else:
        prepared = Prepared(learner.prepare())

        def one(replica: Any, i: int) -> Gradients:
            return task_gradient(replica, prepared, tasks[i], noise[i], parameters)

        found = over_tasks(learner, one, range(len(tasks)))
    total: Gradients = [None] * (len(parameters) + len(prepared.leaves))
    losses: list[Any] = []
    for loss, score, *grads in found:
        losses.append((loss, score))
        total = [_added(a, b) for a, b in zip(total, grads, strict=True)]
    direct, by_leaves = total[: len(parameters)], total[len(parameters) :]
    through = pulled_back(prepared.ends, by_leaves, parameters)
    whole = [_added(a, b) for a, b in zip(direct, through, strict=True)]
    gradient = [
        torch.zeros_like(p) if g is None else g for g, p in zip(whole, parameters, strict=True)
    ]
    return TaskLosses(*(torch.stack(each) for each in zip(*losses, strict=True))), gradient


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
