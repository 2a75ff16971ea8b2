"""The objective slot: what the outer level minimises, as a scalar to be differentiated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from metamirror.core.geometry import State
from metamirror.core.tasks import Task

if TYPE_CHECKING:
    from metamirror.core.learner import Learner


class Objective(Protocol):
    """One task's contribution: a scalar whose gradient is the method's outer update."""

    def __call__(self, learner: Learner, task: Task, state: State) -> Tensor:
        """The scalar for one task, adapted from `state`."""
        ...


class QueryLoss:
    """The query loss after the last step, eq. (1a): the default."""

    def __call__(self, learner: Learner, task: Task, state: State) -> Tensor:
        path = learner.descend(task.support, state)
        return learner.query_loss(path.phi, task)
