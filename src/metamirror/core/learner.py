"""A learner: the inner level of a method, and the objective that the outer level minimises."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.adjoints import Detached
from metamirror.core.checks import check_batch, check_steps, check_task
from metamirror.core.episode import Episode
from metamirror.core.geometry import Geometry, State
from metamirror.core.inner_level import InnerLevel
from metamirror.core.inner_loop import Path
from metamirror.core.lower_level import LowerLevel
from metamirror.core.normalisation import Statistics
from metamirror.core.objectives import Objective, QueryLoss
from metamirror.core.outer_gradient import TaskLosses, TaskWorkers, sum_of_gradients
from metamirror.core.priors import Prior
from metamirror.core.settings import Settings
from metamirror.core.start import Start
from metamirror.core.tasks import Batch, Params, Task, split_tasks


class Adapted:
    """A model adapted to one task: call it on new inputs.

    Attributes:
        params: the adapted parameters, phi^(K).
        path: support losses and gradient norms on the way there.
        statistics: what normalisation uses; None if the batch's own.
    """

    def __init__(self, inner: InnerLevel, path: Path, statistics: Statistics | None):
        self.params, self.path, self.statistics = path.phi, path, statistics
        self._inner = inner
        # Copies: the learner's own go on learning.
        self._fixed = {name: p.clone() for name, p in inner.fixed().items()}

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            phi = {**self._fixed, **self.params}
            return self._inner.predict(phi, x, self.statistics)


class Learner(InnerLevel):
    """A meta-learner. Its `parameters()` that require a gradient are what the outer level trains.

    Build one with `metamirror.make_learner`, which fills the slots for a method by name.

    Args:
        model: any module. Its parameters are the learned start.
        geometry: how a gradient becomes an update; plain gradient descent by default.
        objective: what the outer level minimises; the query loss after the last step by default.
        start: where a task's adaptation begins; at the learned parameters by default.
        prior: R(phi; theta) of the lower level.
        adapts: names of the parameters that adapt; by default all that require a gradient.
        settings: the settings of the inner level; by default those given as keywords.
        **keywords: fields of `Settings`, such as `steps`, `lr`, `adjoint`, `norm`, `loss`.
    """

    def __init__(
        self,
        model: nn.Module,
        geometry: Geometry[Any] | None = None,
        objective: Objective | None = None,
        *,
        start: Start | None = None,
        prior: Prior | None = None,
        adapts: Iterable[str] | None = None,
        settings: Settings | None = None,
        **keywords: Any,
    ):
        Settings.check_names(keywords)
        super().__init__(model, geometry, start, prior, adapts, settings or Settings(**keywords))
        self.objective = objective or QueryLoss()
        self.config: dict[str, Any] | None = None
        """How `make_learner` built it: what `save` writes."""

    def adapt(
        self,
        support: Batch,
        *,
        steps: int | None = None,
        lr: float | None = None,
        seed: int | None = None,
        keep: bool = False,
    ) -> Adapted:
        """Return a model adapted to one task. Memory does not grow with the steps.

        Args:
            support: the task's labelled examples, without a task axis.
            steps: K, if other than the learner's.
            lr: alpha, if other than the learner's.
            seed: of the method's own noise (MT-net's masks); by default drawn from torch's.
            keep: keep every point of the path, which costs one set of parameters per step.
        """
        lower, state = self._begun(support, seed)
        path = self.descend(lower, state, adjoint=Detached(), keep=keep, steps=steps, lr=lr)
        with torch.no_grad():
            return Adapted(self, path, self.statistics(path.phi, support))

    def adaptations(
        self,
        support: Batch,
        *,
        steps: int | None = None,
        lr: float | None = None,
        seed: int | None = None,
    ) -> Iterator[Adapted]:
        """Yield the model after 0, 1, ..., K steps, of which only the latest is in memory.

        >>> import metamirror as mm
        >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
        >>> support = mm.Batch(torch.zeros(5, 1), torch.ones(5, 1))
        >>> len(list(learner.adaptations(support, steps=3)))
        4
        """
        count = self.steps if steps is None else check_steps(steps)
        lower, state = self._begun(support, seed)
        with torch.no_grad():
            phi0 = self.geometry.primal(state)
        for k in range(count + 1):
            path = self.descend(
                lower, state, adjoint=Detached(), steps=min(k, 1), lr=lr, phi0=phi0, first=k - 1
            )
            state = path.states[-1]
            with torch.no_grad():
                yield Adapted(self, path, self.statistics(path.phi, support))

    def meta_loss(self, tasks: Task, *, seeds: Sequence[int] | None = None) -> Tensor:
        """Return the objective's mean over a stack of tasks, for the outer level to differentiate.

        Args:
            tasks: tensors with a leading task axis.
            seeds: one per task, of the method's own noise; by default drawn from torch's.
        """
        return self.task_losses(tasks, seeds=seeds).loss.mean()

    def task_losses(self, tasks: Task, *, seeds: Sequence[int] | None = None) -> TaskLosses:
        """Return objective and accuracy of each task of a stack; arguments as in `meta_loss`."""
        noise = self._check_tasks(tasks, seeds)
        prepared, vectorize = self.prepare(), self.settings.vectorize

        def one(task: Task, noise: Params) -> TaskLosses:
            return self.task_loss(task, prepared, noise, inside_vmap=vectorize)

        if not vectorize:
            each = [one(task, own) for task, own in zip(split_tasks(tasks), noise, strict=True)]
            return TaskLosses(*(torch.stack(values) for values in zip(*each, strict=True)))
        stacked = {name: torch.stack([n[name] for n in noise]) for name in noise[0]}
        return TaskLosses(*torch.func.vmap(one, randomness="different")(tasks, stacked))

    def meta_gradient(
        self,
        tasks: Task,
        parameters: Sequence[Tensor] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        pool: TaskWorkers | None = None,
    ) -> tuple[TaskLosses, list[Tensor]]:
        """Return the gradient of `meta_loss`, in less time and memory than by differentiating it.

        Tasks run side by side, one for each of torch's threads, and each one's graph is freed at
        once. A gradient has the memory layout of its parameter.

        Args:
            tasks: tensors with a leading task axis.
            parameters: what to differentiate by; by default all that the outer level learns.
            seeds: one per task, of the method's own noise; by default drawn from torch's.
            pool: processes that share the tasks; by default threads do.

        >>> import metamirror as mm
        >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
        >>> (losses, _), gradient = learner.meta_gradient(mm.tasks("sinusoid", batch=3)[0])
        >>> len(losses), len(gradient)
        (3, 6)
        """
        if parameters is None:
            parameters = [p for p in self.parameters() if p.requires_grad]
        if self.settings.vectorize:
            loss, accuracy = self.task_losses(tasks, seeds=seeds)
            grads = torch.autograd.grad(loss.mean(), tuple(parameters), materialize_grads=True)
            losses = TaskLosses(loss.detach(), accuracy)
        else:
            noise = self._check_tasks(tasks, seeds)
            losses, total = sum_of_gradients(self, split_tasks(tasks), noise, parameters, pool)
            grads = tuple(grad / len(noise) for grad in total)
        return losses, [like_layout(g, p) for g, p in zip(grads, parameters, strict=True)]

    def task_loss(
        self, task: Task, prepared: Any, noise: Params, *, inside_vmap: bool = False
    ) -> TaskLosses:
        """Return objective and accuracy of one task, given what was prepared for all of them."""
        state = self.begin_at(self.theta(), task.support, prepared, noise)
        episode = Episode(self, task, state, inside_vmap=inside_vmap)
        loss = self.objective(episode)
        return TaskLosses(loss, episode.accuracy)

    def episode(self, task: Task, *, seed: int | None = None) -> Episode:
        """Return one task, without a task axis, as an objective sees it."""
        return Episode(self, task, self.begin(task.support, seed=seed))

    def _begun(self, support: Batch, seed: int | None) -> tuple[LowerLevel, State]:
        """Refuse a support set that does not fit; return what to minimise, and from where."""
        check_batch(support, "support", stacked=False)
        self.check_outputs(support, "support")
        return self.lower_level(support), self.begin(support, seed=seed, detached=True)

    def _check_tasks(self, tasks: Task, seeds: Sequence[int] | None) -> list[Params]:
        """Refuse tasks that do not fit, and draw each one's noise."""
        check_task(tasks)
        count = tasks.support.x.shape[0]
        if seeds is not None and len(seeds) != count:
            raise ValueError(f"{len(seeds)} seeds for {count} tasks; give one per task")
        for name, (x, y) in (("support", tasks.support), ("query", tasks.query)):
            self.check_outputs(Batch(x.flatten(0, 1), y.flatten(0, 1)), name)
        self.check_derivatives(tasks.support.x.flatten(0, 1))
        return [self.noise(None if seeds is None else seeds[i]) for i in range(count)]


def like_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient in its parameter's strides, which torch's fused optimisers rely on."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
