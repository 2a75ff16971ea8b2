"""The nearest class mean: a classifier that does not adapt, to be beaten by those that do."""

import math

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.tasks import Task
from metamirror.data import TaskStream
from metamirror.models import head_of
from metamirror.training.device import place
from metamirror.training.task_results import TaskResult


def features(learner: Learner, task: Task) -> list[Tensor]:
    """Return what the head reads of support and query at the learned start, normalised as usual."""
    head = learner.model.get_submodule(head_of(learner.model))
    task = place(task, learner)
    seen: list[Tensor] = []
    with torch.no_grad():
        phi = learner.geometry.primal(learner.begin(task.support, seed=0))
        statistics = learner.statistics(phi, task.support)
        with head.register_forward_pre_hook(lambda _, x: seen.append(x[0].flatten(1))):
            learner.predict(phi, task.support.x, statistics)
            learner.predict(phi, task.query.x, statistics)
    return seen


def evaluate(stream: TaskStream, count: int, learner: Learner | None) -> list[TaskResult]:
    """Return accuracies on the first tasks of a stream, by a learner's features or by pixels.

    The answer is the class whose mean is nearest by Euclidean distance.
    """
    results = []
    for i in range(count):
        task = stream.task(*divmod(i, stream.batch))
        pixels = [batch.x.flatten(1).to(torch.get_default_dtype()) for batch in task]
        support, query = pixels if learner is None else features(learner, task)
        labels, wanted = (batch.y.to(support.device) for batch in task)
        classes = labels.unique()
        means = torch.stack([support[labels == label].mean(0) for label in classes])
        answers = classes[torch.cdist(query, means).argmin(1)]
        right = (answers == wanted).double().mean().item()
        results.append(TaskResult((math.nan,), (100 * right,)))
    return results
