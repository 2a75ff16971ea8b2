"""The nearest class mean: a classifier that does not adapt, to be beaten by those that do."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch, Task
from metamirror.data import TaskStream
from metamirror.models import head_of
from metamirror.training.device import place
from metamirror.training.evaluate import TaskResult

Represent = Callable[[Task], tuple[Tensor, Tensor]]
"""A task's support and query examples as vectors."""


def pixels(task: Task) -> tuple[Tensor, Tensor]:
    """Return images as they are."""
    return task.support.x.flatten(1), task.query.x.flatten(1)


def features_of(learner: Learner) -> Represent:
    """Return what the head reads at the learned start, normalised as in training."""
    head = learner.model.get_submodule(head_of(learner.model))

    def represent(task: Task) -> tuple[Tensor, Tensor]:
        task = place(task, learner)
        seen: list[Tensor] = []
        with torch.no_grad():
            phi = learner.geometry.primal(learner.begin(task.support, seed=0))
            statistics = learner.statistics(phi, task.support)
            with head.register_forward_pre_hook(lambda _, x: seen.append(x[0].flatten(1))):
                learner.predict(phi, task.support.x, statistics)
                learner.predict(phi, task.query.x, statistics)
        return seen[0], seen[1]

    return represent


def evaluate(stream: TaskStream, count: int, represent: Represent) -> list[TaskResult]:
    """Return accuracies on the first tasks of a stream, in the form that runs have."""
    results = []
    for i in range(count):
        task = stream.task(*divmod(i, stream.batch))
        support, query = represent(task)
        answers = nearest(Batch(support, task.support.y.to(support.device)), query)
        right = (answers == task.query.y.to(query.device)).double().mean().item()
        results.append(TaskResult((math.nan,), (100 * right,)))
    return results


def nearest(support: Batch, query: Tensor) -> Tensor:
    """Return, for each query example, the class whose mean is nearest by Euclidean distance."""
    labels = support.y.unique()
    means = torch.stack([support.x[support.y == label].mean(0) for label in labels])
    answers: Tensor = labels[torch.cdist(query, means).argmin(1)]
    return answers
