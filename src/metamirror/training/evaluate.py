"""Evaluation on fixed tasks: the mean and its 95 % interval, after every inner step."""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from metamirror import data
from metamirror.console import Progress, warn
from metamirror.core.accuracy import accuracy
from metamirror.core.files import to_json, write_atomically, write_json
from metamirror.core.learner import Learner
from metamirror.core.losses import loss_for
from metamirror.core.settings import Norm
from metamirror.core.task_threads import over_tasks
from metamirror.core.tasks import Task
from metamirror.data import TaskStream
from metamirror.storage import learner_file
from metamirror.training.config import RunConfig, load_config
from metamirror.training.device import place
from metamirror.training.distributed import ALONE, Ranks, joined_ranks
from metamirror.training.factory import build_stream, use_precision
from metamirror.training.run_folder import recorded
from metamirror.training.user_modules import check_method

FOLDER = "evaluations"


@dataclass(frozen=True)
class TaskResult:
    """The query results of one task during adaptation, and the path of its support set."""

    # query losses after every step that was evaluated, the last of which is K.
    losses: tuple[float, ...]
    accuracies: tuple[float, ...] | None  # the same in percent; None for regression.
    support_losses: tuple[float, ...] = ()  # support losses before each of the K steps, k = 0..K-1.
    grad_norms: tuple[float, ...] = ()  # the norm of the gradient in phi, at the same points.

    @property
    def loss(self) -> float:
        """The query loss after the last step."""
        return self.losses[-1]

    @property
    def accuracy(self) -> float | None:
        """The query accuracy after the last step, in percent; None for regression."""
        return None if self.accuracies is None else self.accuracies[-1]


class Evaluation(NamedTuple):
    """What a learner reaches on new tasks.

    `mean` and `ci95` are of the accuracy in percent, or of the query loss where there are no
    labels, and `tasks` has the results of each task.
    """

    mean: float
    ci95: float
    tasks: list["TaskResult"]


def evaluate(
    learner: Learner, tasks: Any, n: int = 600, *, steps: int | None = None, quiet: bool = True
) -> Evaluation:
    """Adapt a learner to new tasks and return the mean over them, with its 95 % interval.

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
    return Evaluation(found.get("accuracy", found["loss"]), found["ci95"], results)


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
    # In each row: query losses and shares of right answers, then support losses and gradient norms.
    table = torch.zeros(count, 2 * points + 2 * steps, dtype=torch.float64)
    if ranks.device.type == "cuda":
        table = table.to(ranks.device)
    totals = torch.zeros(2, dtype=torch.float64)
    share = ranks.share(count)

    def evaluated(replica: Learner, i: int) -> tuple[Tensor, Tensor]:
        step, index = divmod(i, stream.batch)
        task, seed = place(stream.task(step, index), replica), stream.seeds(step)[index]
        return _evaluated(replica, task, steps, every_step, seed)

    with Progress(title, count, quiet=quiet or not ranks.first) as progress:
        found = over_tasks(learner, evaluated, share)
        for done, (i, (query, path)) in enumerate(zip(share, found, strict=True), start=1):
            table[i] = torch.cat([query.flatten(), path.flatten()])
            totals += query[:, -1]
            loss, right = (totals / done).tolist()
            accuracy = "" if math.isnan(right) else f", accuracy {100 * right:.2f} %"
            progress.update(min(count, done * ranks.world), f"loss {loss:.4f}{accuracy}")
    parts = ranks.all_reduce(table).cpu().split([points, points, steps, steps], dim=1)
    regression = bool(parts[1].isnan().all())
    return [
        TaskResult(
            losses=tuple(loss),
            accuracies=None if regression else tuple(100 * share for share in right),
            support_losses=tuple(support),
            grad_norms=tuple(norms),
        )
        for loss, right, support, norms in zip(*(part.tolist() for part in parts), strict=True)
    ]


def _evaluated(
    learner: Learner, task: Task, steps: int, every_step: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """Return two tables with a column for each point.

    One has query losses and the shares of right answers at the points evaluated, the other support
    losses and gradient norms before each step.
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
        right = accuracy(output, task.query.y)
        share = math.nan if right is None else right.double().item()
        rows.append((loss(output, task.query.y).item(), share))
    return torch.tensor(rows, dtype=torch.float64).T, torch.cat(path, dim=1)


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """Return the mean over tasks and half its 95 % interval, 1.96 std / sqrt(n)."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return sum(values) / len(values), float("nan")
    return statistics.fmean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5


def summary(results: list[TaskResult], point: int = -1) -> dict[str, float]:
    """Return the mean accuracy or squared error over tasks, its interval, and the mean loss."""
    loss, loss_interval = mean_and_interval([r.losses[point] for r in results])
    accuracies = [r.accuracies[point] for r in results if r.accuracies is not None]
    if not accuracies:
        return {"mse": loss, "ci95": loss_interval, "loss": loss}
    accuracy, interval = mean_and_interval(accuracies)
    return {"accuracy": accuracy, "ci95": interval, "loss": loss}


def evaluate_run(
    run: Path,
    *,
    split: str = "test",
    tasks: int = 600,
    steps: int | None = None,
    norm: Norm | None = None,
    queries: int | None = None,
    ways: int | None = None,
    which: Literal["best", "last"] = "best",
    every_step: bool = True,
    device: str = "auto",
    data_dir: Path | None = None,
) -> dict[str, object]:
    """Evaluate a run; return the fields that `metamirror evaluate --json` prints.

    The result is written to `RUN/evaluations`, with the results of every task in a file beside it.

    Args:
        run: the run folder.
        split: train, val or test.
        tasks: how many tasks; always the first ones of the split.
        steps: inner steps, if other than in training.
        norm: which statistics normalise the query, if others than in training.
        queries: query examples a class, if others than in training.
        ways: classes of a task, if others than in training; the head must be computed from the
            examples for that, as protonet's and every start=ridge is.
        which: the learner with the best validation score, or the last one.
        every_step: predict after each of the steps 0..K, or, in less than half the time, after the
            last alone.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
    """
    if tasks < 2:
        raise ValueError(f"tasks is {tasks}; an interval needs at least 2")
    config = load_config(run)
    trained_ways = config.ways
    if queries is not None:
        config = replace(config, queries=queries)
    learner, step = loaded(run, which)
    use_precision(learner, config)
    if ways is not None and ways != config.ways:
        check_ways(learner, config, ways, steps)
        config = replace(config, ways=ways)
    if norm is not None:
        learner.configure(norm=norm)
    with joined_ranks(device) as ranks:
        stream = build_stream(config, split, batch=1, data_dir=data_dir)
        if ranks.first:
            warn_of_other_data(run, config.data, stream)
        if not ranks.agree(step or 0):
            raise ValueError(f"{run} is still being trained: evaluate it when it has ended")
        learner = learner.to(ranks.device)
        results = evaluate_stream(
            learner, stream, tasks, steps=steps, every_step=every_step, ranks=ranks
        )
        first = ranks.first
        ranks.part()
    last = learner.steps_of(steps)
    points = range(last + 1) if every_step else (last,)
    found: dict[str, object] = {
        "method": config.method,
        "data": config.data,
        "split": split,
        "ways": None if results[0].accuracies is None else config.ways,
        "trained_ways": None if results[0].accuracies is None else trained_ways,
        "shots": config.shots,
        "queries": config.queries,
        "steps": last,
        "norm": learner.norm,
        "autocast": config.autocast,
        "tasks": tasks,
        "seed": config.seed,
        "which": which,
        "step": config.iterations if step is None else step,
        **summary(results),
        "by_step": [{"k": k, **summary(results, i)} for i, k in enumerate(points)],
    }
    if first:
        _keep(run / FOLDER, found, results)
    return found


def check_ways(learner: Learner, config: RunConfig, ways: int, steps: int | None) -> None:
    """Refuse another number of classes than was trained where the learner cannot serve it."""
    if not learner.fits_any_outputs(steps):
        raise ValueError(
            f"ways is {ways}, and the head and geometry of {config.method} are made for the "
            f"{config.ways} of training: train with --ways {ways}, or a method whose head is "
            f"computed, such as protonet or maml:start=prototypes"
        )


def _keep(folder: Path, found: dict[str, object], results: list[TaskResult]) -> None:
    if odd := sum(not math.isfinite(r.loss) for r in results):
        steps = found["steps"]
        warn(f"the loss of {odd} of {len(results)} tasks is not finite after {steps} steps")
    name = evaluation_name(found)
    try:
        folder.mkdir(exist_ok=True)
        write_tasks(folder / f"{name}.jsonl", results)
        write_json(folder / f"{name}.json", found)
    except OSError as error:
        # The result is what was asked for: it is printed all the same.
        warn(f"the results of single tasks are not kept: {error}")


def warn_of_other_data(run: Path, data: str, stream: TaskStream) -> None:
    """Warn where a run is evaluated on other data than it was trained on."""
    if recorded(run).get("data", stream.identity) != stream.identity:
        warn(
            f"{data} is not what {run} was trained on: images or classes have changed since, and "
            f"some may have been seen in training"
        )


def loaded(run: Path, which: Literal["best", "last"]) -> tuple[Learner, int | None]:
    """Load a learner and its step, even while a process trains on and replaces both."""
    if (run / "config.json").is_file():
        check_method(load_config(run))
    while True:
        before = learner_file.step_of(run, which)
        learner = learner_file.load(run, which=which)
        if learner_file.step_of(run, which) == before:
            return learner, before


def evaluation_name(found: Mapping[str, object]) -> str:
    """Return a result's name in `RUN/evaluations`: all that may differ from one to the next."""
    name = "{split}-{which}-{tasks}tasks-{steps}steps-{norm}-{queries}queries".format(**found)
    return name if found["ways"] == found["trained_ways"] else f"{name}-{found['ways']}ways"


def write_tasks(file: Path, results: list[TaskResult]) -> None:
    """Write the results of single tasks, a line each."""
    lines = []
    for i, result in enumerate(results):
        values = {"task": i, "loss": result.losses, "accuracy": result.accuracies}
        lines.append(to_json({k: v for k, v in values.items() if v is not None}, indent=None))
    write_atomically(file, ("\n".join(lines) + "\n").encode())


def read_tasks(file: Path) -> list[TaskResult]:
    """Read what `write_tasks` wrote; a figure that was not finite comes back as NaN."""

    def figures(values: list[float | None]) -> tuple[float, ...]:
        return tuple(math.nan if value is None else float(value) for value in values)

    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found = [
            TaskResult(figures(x["loss"]), figures(x["accuracy"]) if "accuracy" in x else None)
            for x in lines
        ]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} holds no results of tasks: {error}") from error
    if not found or not all(result.losses for result in found):
        raise ValueError(f"{file} holds no results of tasks: it is empty, or a task has none")
    return found
