"""Evaluation on fixed tasks: the mean and its 95 % interval, after every inner step."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metamirror import data
from metamirror.console import Progress, warn
from metamirror.core.dropout import without_dropout
from metamirror.core.learner import Learner
from metamirror.core.losses import loss_for, scalar
from metamirror.core.metrics import LOSS, Metric
from metamirror.core.task_threads import over_tasks
from metamirror.core.tasks import Task
from metamirror.data import TaskStream
from metamirror.training.device import place
from metamirror.training.distributed import ALONE, Ranks
from metamirror.training.task_results import TaskResult, summary


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

    Memory holds one task for each thread and a table of figures, whatever the number of tasks and
    steps; each task is adapted to alone, so that the figures do not depend on the number of ranks.
    """
    steps = learner.steps_of(steps)
    points = steps + 1 if every_step else 1
    metric = learner.settings.metric_of(stream.task(0, 0).query.y)
    # In each row: query losses and scores, then support losses and gradient norms.
    table = torch.zeros(count, 2 * points + 2 * steps, dtype=torch.float64)
    if ranks.device.type == "cuda":
        table = table.to(ranks.device)
    totals = torch.zeros(2, dtype=torch.float64)
    share = ranks.share(count)

    def evaluated(replica: Learner, i: int) -> tuple[Tensor, Tensor]:
        step, index = divmod(i, stream.batch)
        task, seed = place(stream.task(step, index), replica), stream.seeds(step)[index]
        return _evaluated(replica, task, metric, steps, every_step, seed)

    bar = Progress(title, count, quiet=quiet or not ranks.first)
    with bar as progress, without_dropout(learner):
        found = over_tasks(learner, evaluated, share)
        for done, (i, (query, path)) in enumerate(zip(share, found, strict=True), start=1):
            table[i] = torch.cat([query.flatten(), path.flatten()])
            totals += query[:, -1]
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


def _evaluated(
    learner: Learner, task: Task, metric: Metric, steps: int, every_step: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """Return two tables with a column for each point.

    One has query losses and scores at the points evaluated, the other support losses and gradient
    norms before each step.
    """
    settings = learner.settings
    loss = settings.query_loss or settings.loss or loss_for(task.query.y)
    points = (
        learner.adaptations(task.support, steps=steps, seed=seed)
        if every_step
        else [learner.adapt(task.support, steps=steps, seed=seed)]
    )
    rows, path = [], []
    for adapted in points:
        path.append(torch.stack([adapted.path.losses, adapted.path.grad_norms]).cpu().double())
        output = adapted(task.query.x)
        score = metric(output, task.query.y)
        value = math.nan if score is None else metric.scale * score.double().item()
        rows.append((scalar(loss(output, task.query.y), "query_loss").item(), value))
    return torch.tensor(rows, dtype=torch.float64).T, torch.cat(path, dim=1)
