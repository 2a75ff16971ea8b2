"""The objective slot: what the outer level minimises, as a scalar to be differentiated."""

from typing import Protocol

from torch import Tensor

from metamirror.core.episode import Episode


class Objective(Protocol):
    """One task's contribution: a scalar whose gradient is the method's outer update."""

    def __call__(self, episode: Episode) -> Tensor:
        """Return the scalar for one task."""
        ...


class QueryLoss:
    """The query loss after the last step, eq. (1a): the default."""

    def __call__(self, episode: Episode) -> Tensor:
        return episode.query_loss(episode.descend().phi)
