"""The start slot: where the adaptation to a task begins."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import nn

from metamirror.core.lower_level import LowerLevel
from metamirror.core.tasks import Params


class Start(nn.Module, ABC):
    """Gives the point at which a task's inner loop begins. Its own parameters are meta-learned."""

    shared: bool = True
    """Whether all tasks begin at the learned parameters themselves."""

    computed: Sequence[str] = ()
    """Parameters of the model that it gives other values for each task: their own rest."""

    any_outputs: bool = False
    """Whether it makes a head for as many outputs as a task asks for: `lower.outputs`."""

    @abstractmethod
    def forward(self, theta: Params, lower: LowerLevel) -> Params:
        """Return the start of one task, from the learned parameters and its support loss."""


class LearnedStart(Start):
    """Every task begins at the learned parameters. The default."""

    def forward(self, theta: Params, lower: LowerLevel) -> Params:
        return theta
