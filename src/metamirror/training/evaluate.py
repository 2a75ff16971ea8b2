"""Evaluation on fixed tasks: the mean and its 95 % interval, after every inner step."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metamirror import data
from metamirror.console import Progress, warn
from metamirror.core.adapted import Adapted
from metamirror.core.adjoints import Detached
from metamirror.core.dropout import without_dropout
from metamirror.core.grad_mode import differentiable
from metamirror.core.learner import Learner
from metamirror.core.losses import loss_for, scalar
from metamirror.core.metrics import LOSS, Metric
from metamirror.core.stacks import over_stack
from metamirror.core.task_threads import over_tasks
from metamirror.core.tasks import Params, Task
from metamirror.core.trees import Tree, mapped
from metamirror.data import TaskStream
from metamirror.training.device import place
from metamirror.training.distributed import ALONE, Ranks
from metamirror.training.task_results import TaskResult, summary

TOGETHER = 32
"""Tasks that are adapted to at once where the learner vectorises."""


class Evaluation(NamedTuple):
    """What a learner reaches on new tasks.

    `mean` and `ci95` are of the learner's metric: by default of the accuracy in percent, or of the
    query loss where targets are no labels. `tasks` has the results of each task.
    """

    mean: float
    ci95: float
    tasks: list[TaskResult]
    metric: str

    def __repr__(self) -> str:
        metric = self.tasks[0].metric
        shown = f"{self.mean:.{metric.digits}f} ± {metric.shown(self.ci95)}"
        return f"{self.metric} {shown} over {len(self.tasks)} tasks"


def evaluate(
    learner: Learner, tasks: Any, n: int = 600, *, steps: int | None = None, quiet: bool = True
) -> Evaluation:
    """Adapt a learner to new tasks and return the mean over them, with its 95 % interval.

    Dropout rests meanwhile.

    Args:
        learner: any learner, also one of your own parts.
        tasks: what `metamirror.tasks` returns or takes.
        n: how many of them.
        steps: inner steps, if other than the learner's.
        quiet: show no progress.

    >>> import metamirror as mm
    >>> learner = mm.make_learner("maml", mm.models.MLP(1, 1))
    >>> found = evaluate(learner, mm.tasks("sinusoid", "test"), n=4)
    >>> len(found.tasks)
    4
    """
    if n < 2:
        raise ValueError(f"n is {n}; an interval needs at least 2 tasks")
    results = evaluate_stream(learner, data.tasks(tasks), n, steps=steps, quiet=quiet)
    found = summary(results)
    name = results[0].metric.name
    return Evaluation(found[name], found["ci95"], results, name)


def evaluate_stream(
    learner: Learner,
    stream: TaskStream,
    count: int,
    *,
    steps: int | None = None,
    every_step: bool = False,
    ranks: Ranks = ALONE,
    quiet: bool = False,
    title: str = "evaluate",
) -> list[TaskResult]:
    """Evaluate on the first `count` tasks of a stream, which the ranks share.

    Memory holds one task for each thread, or `TOGETHER` of them where the learner vectorises, and a
    table of figures, whatever the number of tasks and steps. Which tasks run together does not
    depend on the number of ranks, nor do the figures.
    """
    steps = learner.steps_of(steps)
    points = steps + 1 if every_step else 1
    metric = learner.settings.metric_of(stream.task(0, 0).query.y)
    # In each row: query losses and scores, then support losses and gradient norms.
    table = torch.zeros(count, 2 * points + 2 * steps, dtype=torch.float64)
    if ranks.device.type == "cuda":
        table = table.to(ranks.device)
    totals = torch.zeros(2, dtype=torch.float64)
    size = TOGETHER if learner.settings.vectorize and not stream.ragged else 1

    def evaluated(replica: Learner, chunk: range) -> list[tuple[Tensor, Tensor]]:
        # The last chunk is filled up, so that a task's figures round the same in any count.
        places = [divmod(min(i, count - 1), stream.batch) for i in chunk]
        tasks = [place(stream.task(*at), replica) for at in places]
        of_step = {step: stream.seeds(step) for step, _ in places}
        seeds = [of_step[step][index] for step, index in places]
        run = _one_by_one if size == 1 else _together
        found = run(replica, tasks, steps, every_step, seeds)
        return [
            _figures(replica, task, metric, own) for task, own in zip(tasks, found, strict=True)
        ]

    chunks = [range(i, i + size) for i in range(0, count, size)]
    share = [chunks[i] for i in ranks.share(len(chunks))]
    bar = Progress(title, count, quiet=quiet or not ranks.first)
    with bar as progress, without_dropout(learner):
        done = 0
        for chunk, found in zip(share, over_tasks(learner, evaluated, share), strict=True):
            for i, (query, path) in zip(chunk[: count - chunk.start], found, strict=False):
                table[i] = torch.cat([query.flatten(), path.flatten()])
                totals += query[:, -1]
                done += 1
            loss, score = (totals / done).tolist()
            known = "" if math.isnan(score) else f", {metric.name} {metric.shown(score)}"
            progress.update(min(count, done * ranks.world), f"loss {loss:.4f}{known}")
    parts = ranks.all_reduce(table).cpu().split([points, points, steps, steps], dim=1)
    if without := bool(parts[1].isnan().all()):
        if learner.settings.metric is not None and ranks.first:
            warn(f"{metric.name} has no value on any of these tasks: the loss is reported")
        metric = LOSS
    return [
        TaskResult(
            losses=tuple(loss),
            scores=None if without else tuple(scores),
            metric=metric,
            support_losses=tuple(support),
            grad_norms=tuple(norms),
        )
        for loss, scores, support, norms in zip(*(part.tolist() for part in parts), strict=True)
    ]


Predicted = tuple[Any, Tensor]
"""Query predictions at one point; support losses and gradient norms on the way from the last."""


def _one_by_one(
    learner: Learner, tasks: Sequence[Task], steps: int, every_step: bool, seeds: Sequence[int]
) -> Iterator[Iterator[Predicted]]:
    """Yield each task's points, of which one is in memory."""
    for task, seed in zip(tasks, seeds, strict=True):
        points = (
            learner.adaptations(task.support, steps=steps, seed=seed)
            if every_step
            else iter([learner.adapt(task.support, steps=steps, seed=seed)])
        )
        yield (_predicted(adapted, task.query.x) for adapted in points)


def _together(
    learner: Learner, tasks: Sequence[Task], steps: int, every_step: bool, seeds: Sequence[int]
) -> list[list[Predicted]]:
    """Return the same as `_one_by_one`, of all tasks at once under vmap."""

    def one(task: Task, noise: Params, outputs: int | None) -> list[Predicted]:
        lower = learner.lower_level(task.support)
        state = learner.begin_detached(task.support, noise, outputs)
        if every_step:
            points = learner.walk(lower, state, steps=steps, inside_vmap=True)
        else:
            path = learner.descend(lower, state, adjoint=Detached(), steps=steps, inside_vmap=True)
            points = iter([learner.adapted(path, task.support)])
        return [_predicted(adapted, task.query.x) for adapted in points]

    with differentiable():
        checked, noise = learner.checked(tasks, seeds)
        found = over_stack(learner, one, checked, noise, steps)
    return [mapped(lambda tensor, i=i: tensor[i], found) for i in range(len(tasks))]


def _predicted(adapted: Adapted, x: Tree) -> Predicted:
    return adapted(x), torch.stack([adapted.path.losses, adapted.path.grad_norms])


def _figures(
    learner: Learner, task: Task, metric: Metric, points: Iterable[Predicted]
) -> tuple[Tensor, Tensor]:
    """Return two tables with a column for each point.

    One has query losses and scores at the points evaluated, the other support losses and gradient
    norms before each step.
    """
    settings, y = learner.settings, task.query.y
    loss = settings.query_loss or settings.loss or loss_for(y)
    # Numbers and not tensors: what stays between the steps' large tensors splits the heap.
    query, path = [], []
    for output, way in points:
        score = metric(output, y)
        value = math.nan if score is None else metric.scale * score.double().item()
        query.append((scalar(loss(output, y), "query_loss").item(), value))
        path += way.T.tolist()
    tables = (torch.tensor(rows, dtype=torch.float64).reshape(-1, 2).T for rows in (query, path))
    return tuple(tables)  # type: ignore[return-value]
