"""One task as the outer level sees it."""

from torch import Tensor

from metamirror.core.adjoints import Adjoint
from metamirror.core.geometry import State
from metamirror.core.inner_level import InnerLevel
from metamirror.core.inner_loop import Path
from metamirror.core.losses import loss_for, scalar
from metamirror.core.tasks import Batch, Params, Task


class Episode:
    """A task with its inner level, ready to be adapted to and evaluated.

    Attributes:
        inner: model, geometry, start and settings.
        task: support and query set.
        state: where the adaptation begins.
        score: the metric on the query set when `query_loss` was last called; NaN before, and where
            there is none.
    """

    def __init__(self, inner: InnerLevel, task: Task, state: State, *, inside_vmap: bool = False):
        self.inner, self.task, self.state = inner, task, state
        self.score = next(iter(state.z.values())).detach().new_full((), float("nan"))
        self._inside_vmap = inside_vmap

    def descend(
        self,
        *,
        state: State | None = None,
        adjoint: Adjoint | None = None,
        steps: int | None = None,
        keep: bool = False,
        fixed: Params | None = None,
        phi0: Params | None = None,
        support: Batch | None = None,
        first: int = 0,
    ) -> Path:
        """Run the inner loop on the support set, or on other examples in its place.

        `fixed` as in `InnerLevel.lower_level`, the other arguments as in `InnerLevel.descend`.
        """
        used = self.inner.settings.adjoint if adjoint is None else adjoint
        partly = any(given is not None for given in (state, steps, support))
        if used.attaches and (keep or partly):
            raise ValueError(
                f"the {used.name} adjoint differentiates the last point of a whole adaptation, and "
                f"this objective uses other points or single steps: choose another adjoint"
            )
        return self.inner.descend(
            self.inner.lower_level(support or self.task.support, fixed),
            self.state if state is None else state,
            adjoint=adjoint,
            steps=steps,
            keep=keep,
            phi0=phi0,
            first=first,
            inside_vmap=self._inside_vmap,
        )

    def query_loss(self, phi: Params) -> Tensor:
        """Return the query loss at phi, under the learner's normalisation protocol."""
        support, (x, y) = self.task
        output = self.inner.predict(phi, x, self.inner.statistics(phi, support))
        settings = self.inner.settings
        if (score := settings.metric_of(y)(output, y)) is not None:
            self.score = score.to(self.score)
        loss = settings.query_loss or settings.loss or loss_for(y)
        return scalar(loss(output, y), "query_loss")
