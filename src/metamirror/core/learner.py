"""A learner: the inner level of a method, and the objective that the outer level minimises."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.adapted import Adapted
from metamirror.core.adjoints import Detached
from metamirror.core.checks import are_labels, check_batch, check_every_class, check_tasks
from metamirror.core.copied_model import CopiedModel
from metamirror.core.episode import Episode
from metamirror.core.geometry import Geometry, State
from metamirror.core.grad_mode import check_ordinary, differentiable
from metamirror.core.inner_level import InnerLevel
from metamirror.core.inner_loop import Path
from metamirror.core.lower_level import LowerLevel
from metamirror.core.objectives import Objective, QueryLoss
from metamirror.core.outer_gradient import TaskLosses, TaskWorkers, sum_of_gradients
from metamirror.core.priors import Prior
from metamirror.core.settings import Settings
from metamirror.core.stacks import chunks_of, flattened, over_stack
from metamirror.core.start import Start
from metamirror.core.tasks import (
    Batch,
    Params,
    Task,
    Tasks,
    as_batch,
    split_tasks,
)
from metamirror.core.trees import mapped


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
        self.copied = CopiedModel()
        """What its model was copied from, for a notice to who trains that instead."""

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
            support: the task's labelled examples (x, y), without a task axis.
            steps: K, if other than the learner's.
            lr: alpha, if other than the learner's.
            seed: of the method's own noise (MT-net's masks); by default drawn from torch's.
            keep: keep every point of the path, which costs one set of parameters per step.
        """
        with differentiable():
            lower, state = self._begun(support, seed, steps)
            path = self.descend(lower, state, adjoint=Detached(), keep=keep, steps=steps, lr=lr)
            return self.adapted(path, lower.batch)

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
        with differentiable():
            lower, state = self._begun(support, seed, steps)
        yield from self.walk(lower, state, steps=self.steps_of(steps), lr=lr)

    def walk(
        self,
        lower: LowerLevel,
        state: State,
        *,
        steps: int,
        lr: float | None = None,
        inside_vmap: bool = False,
    ) -> Iterator[Adapted]:
        """Yield the model after 0, 1, ..., `steps` steps from a state."""
        with differentiable(), torch.no_grad():
            phi0 = self.geometry.primal(state)
        for k in range(steps + 1):
            with differentiable():
                path = self.descend(
                    lower,
                    state,
                    adjoint=Detached(),
                    steps=min(k, 1),
                    lr=lr,
                    phi0=phi0,
                    first=k - 1,
                    inside_vmap=inside_vmap,
                )
                state = path.states[-1]
                adapted = self.adapted(path, lower.batch)
            yield adapted

    def adapted(self, path: Path, support: Batch) -> Adapted:
        """Return the model at the end of a path."""
        labels = are_labels(support.y)
        with torch.no_grad():
            return Adapted(self, path, self.statistics(path.phi, support), labels=labels)

    def meta_loss(self, tasks: Tasks, *, seeds: Sequence[int] | None = None) -> Tensor:
        """Return the objective's mean over some tasks, for the outer level to differentiate.

        Args:
            tasks: a stack, whose tensors have a leading task axis, or a list of single tasks, which
                may differ in ways, shots, queries and lengths.
            seeds: one per task, of the method's own noise; by default drawn from torch's.
        """
        return self.task_losses(tasks, seeds=seeds).loss.mean()

    def task_losses(self, tasks: Tasks, *, seeds: Sequence[int] | None = None) -> TaskLosses:
        """Return objective and score of each task; arguments as in `meta_loss`.

        Where gradients are switched off, nothing is kept for them.
        """
        differentiated = self.training and torch.is_grad_enabled()
        with differentiable():
            tasks, noise = self.checked(tasks, seeds)
            if differentiated:
                self.copied.watch(self.model)
            if self.settings.vectorize:
                return self._together(tasks, noise)
            prepared = self.prepare()
            pairs = zip(split_tasks(tasks), noise, strict=True)
            each = [self.task_loss(task, prepared, own) for task, own in pairs]
            return TaskLosses(*(torch.stack(values) for values in zip(*each, strict=True)))

    def _together(self, tasks: Tasks, noise: Sequence[Params]) -> TaskLosses:
        """Return objective and score of each task, all at once under vmap."""
        prepared = self.prepare()

        def one(task: Task, noise: Params, outputs: int | None) -> TaskLosses:
            return self.task_loss(task, prepared, noise, inside_vmap=True, outputs=outputs)

        return TaskLosses(*over_stack(self, one, tasks, noise))

    def meta_gradient(
        self,
        tasks: Tasks,
        parameters: Sequence[Tensor] | None = None,
        *,
        seeds: Sequence[int] | None = None,
        pool: TaskWorkers | None = None,
    ) -> tuple[TaskLosses, list[Tensor]]:
        """Return the gradient of `meta_loss`, in less time and memory than by differentiating it.

        Tasks run side by side, one for each of torch's threads, and each one's graph is freed at
        once. A gradient has the memory layout of its parameter. Gradients that the caller has
        switched off, as under `torch.no_grad`, are switched on for it.

        Args:
            tasks: a stack or a list, as in `meta_loss`.
            parameters: what to differentiate by; by default all that the outer level learns.
            seeds: one per task, of the method's own noise; by default drawn from torch's.
            pool: processes that share the tasks; by default threads do.

        >>> import metamirror as mm
        >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
        >>> (losses, _), gradient = learner.meta_gradient(mm.tasks("sinusoid", batch=3)[0])
        >>> len(losses), len(gradient)
        (3, 6)
        """
        with differentiable(), torch.enable_grad():
            if parameters is None:
                parameters = [p for p in self.parameters() if p.requires_grad]
            tasks, noise = self.checked(tasks, seeds)
            if self.settings.vectorize:
                losses, grads = self._chunked(tasks, noise, parameters)
            else:
                losses, total = sum_of_gradients(self, split_tasks(tasks), noise, parameters, pool)
                grads = [grad / len(noise) for grad in total]
            return losses, [like_layout(g, p) for g, p in zip(grads, parameters, strict=True)]

    def _chunked(
        self, tasks: Tasks, noise: Sequence[Params], parameters: Sequence[Tensor]
    ) -> tuple[TaskLosses, list[Tensor]]:
        """Return what `meta_gradient` does, from as many tasks at once as memory allows."""
        total: list[Tensor] = []
        found: list[TaskLosses] = []
        for chunk in chunks_of(self, tasks):
            begun = sum(len(losses.loss) for losses in found)
            count = chunk.support.examples if isinstance(chunk, Task) else len(chunk)
            loss, score = self._together(chunk, noise[begun : begun + count])
            mean = loss.sum() / len(noise)
            grads = torch.autograd.grad(mean, tuple(parameters), materialize_grads=True)
            total = [a + b for a, b in zip(total, grads, strict=True)] if total else list(grads)
            found.append(TaskLosses(loss.detach(), score))
        return TaskLosses(*map(torch.cat, zip(*found, strict=True))), total

    def task_loss(
        self,
        task: Task,
        prepared: Any,
        noise: Params,
        *,
        inside_vmap: bool = False,
        outputs: int | None = None,
    ) -> TaskLosses:
        """Return objective and score of one task, given what was prepared for all of them.

        `outputs` as in `begin_at`.
        """
        state = self.begin_at(self.theta(), task.support, prepared, noise, outputs)
        episode = Episode(self, task, state, inside_vmap=inside_vmap)
        loss = self.objective(episode)
        return TaskLosses(loss, episode.score)

    def episode(self, task: Task, *, seed: int | None = None) -> Episode:
        """Return one task, without a task axis, as an objective sees it."""
        return Episode(self, task, self.begin(task.support, seed=seed))

    def _begun(
        self, support: Batch, seed: int | None, steps: int | None
    ) -> tuple[LowerLevel, State]:
        """Refuse a support set that does not fit; return what to minimise, and from where."""
        like = check_ordinary(next(iter(self.theta().values())))
        support = as_batch(support, like, "support")
        check_batch(support, "support", stacked=False)
        outputs = self.asked_outputs(support, steps)
        self.check_outputs(support, "support", outputs)
        if outputs is not None:
            check_every_class(support.y, outputs)
        if self.steps_of(steps) and not self.is_ours:
            # The library's own need no trial, which takes as long as a step.
            self.check_derivatives(support.x, once=True)
        return self.lower_level(support), self.begin(support, seed=seed, detached=True)

    def checked(self, tasks: Tasks, seeds: Sequence[int] | None) -> tuple[Tasks, list[Params]]:
        """Refuse tasks that do not fit; return them with each one's noise."""
        tasks = check_tasks(tasks, check_ordinary(next(iter(self.theta().values()))))
        if isinstance(tasks, Task):
            # What is stacked is looked at as one, which takes less time.
            count, parts = tasks.support.examples, {"": flattened(tasks)}
            first: Task = mapped(lambda tensor: tensor[0], tasks)
        else:
            count, parts = len(tasks), {f"tasks[{i}].": task for i, task in enumerate(tasks)}
            first = tasks[0]
        if seeds is not None and len(seeds) != count:
            raise ValueError(f"{len(seeds)} seeds for {count} tasks; give one per task")
        for where, task in parts.items():
            outputs = self.asked_outputs(task.support)
            self.check_outputs(task.support, f"{where}support", outputs)
            self.check_outputs(task.query, f"{where}query", outputs)
        if self.steps:
            self.check_derivatives(first.support.x)
            self.check_losses(first)
        if self.start.any_outputs:
            for task in split_tasks(tasks):
                check_every_class(task.support.y, outputs if "" in parts else None)
        return tasks, [self.noise(None if seeds is None else seeds[i]) for i in range(count)]


def like_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient in its parameter's strides, which torch's fused optimisers rely on."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
