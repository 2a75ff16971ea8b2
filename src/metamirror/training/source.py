"""What a run learns from: tasks, or labelled examples of all train classes at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from metamirror.core.learner import Learner
from metamirror.core.metrics import Metric
from metamirror.data import TaskStream
from metamirror.parallel.task_pool import TaskPool
from metamirror.training.distributed import Ranks
from metamirror.training.outer_step import OuterGradient, blame, meta_gradient


class Source(ABC):
    """Gives the gradient of every outer step, as a function of the step alone."""

    stream: TaskStream
    """Tasks of the classes from which it comes."""

    guessing: float
    """The loss of guessing."""

    metric: Metric
    """What it gives beside the loss; the loss itself, if nothing."""

    chance: float
    """The share of right answers that guessing gives, where answers are labels."""

    beside: nn.Module | None = None
    """What is trained beside the learner, and ends with the run."""

    @abstractmethod
    def gradient(self, step: int, *, stop: bool) -> OuterGradient:
        """Return the gradient of a step; `stop` says that this process was asked to stop."""

    def blame(self, step: int, gradient: OuterGradient) -> dict[int, str]:
        """Return which tasks of a step are not finite, and what of them, where it has tasks."""
        return {}


class TaskSource(Source):
    """The meta-gradient of tasks, which ranks and the worker processes of a pool share."""

    def __init__(
        self,
        learner: Learner,
        parameters: Sequence[Tensor],
        stream: TaskStream,
        guessing: float,
        ranks: Ranks,
    ):
        self.learner, self.parameters = learner, parameters
        self.stream, self.ranks = stream, ranks
        self.guessing, self.chance = guessing, stream.chance
        self.metric = learner.settings.metric_of(stream.task(0, 0).query.y)
        self.pool: TaskPool | None = None

    def gradient(self, step: int, *, stop: bool) -> OuterGradient:
        return meta_gradient(
            self.learner,
            self.parameters,
            self.stream,
            step,
            self.ranks,
            stop=stop,
            pool=self.pool,
        )

    def blame(self, step: int, gradient: OuterGradient) -> dict[int, str]:
        return blame(self.learner, self.parameters, self.stream, step, self.ranks, gradient.own)
