"""Fixed test tasks, one after the other: the mean and its 95 % interval."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

import torch
from torch import Tensor

from metamirror import checkpoint
from metamirror.build import build_stream
from metamirror.config import RunConfig
from metamirror.data import TaskStream
from metamirror.files import read_json
from metamirror.learner import Learner
from metamirror.options import convert
from metamirror.progress import Progress
from metamirror.types import Batch, loss_for


@dataclass(frozen=True)
class TaskResult:
    """One task after adaptation.

    Attributes:
        loss: the query loss.
        accuracy: in percent, for classification.
    """

    loss: float
    accuracy: float | None


def evaluate_task(
    learner: Learner, support: Batch, query: Batch, *, steps: int | None, seed: int
) -> TaskResult:
    """Adapts to one task and judges the result by its query set."""
    adapted = learner.adapt(support, steps=steps, seed=seed)
    output = adapted(query.x)
    loss = float((learner.loss or loss_for(query.y))(output, query.y))
    return TaskResult(loss, None if query.y.is_floating_point() else _accuracy(output, query.y))


def evaluate_stream(
    learner: Learner, stream: TaskStream, count: int, *, steps: int | None = None
) -> list[TaskResult]:
    """Results on the first `count` tasks of a stream."""
    results: list[TaskResult] = []
    with Progress("evaluate", count) as progress:
        while len(results) < count:
            step, index = divmod(len(results), stream.batch)
            task, seeds = stream.task(step, index), stream.seeds(step)
            results.append(
                evaluate_task(learner, task.support, task.query, steps=steps, seed=seeds[index])
            )
            mean = statistics.fmean(r.loss for r in results)
            progress.update(len(results), f"loss {mean:.4f}")
    return results


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """The mean over tasks and half its 95 % interval, 1.96 std / sqrt(n)."""
    if len(values) < 2:
        return values[0], float("nan")
    return statistics.fmean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5


def evaluate_run(
    run: Path, *, split: str = "test", tasks: int = 600, steps: int | None = None
) -> dict[str, object]:
    """The result of a run, in the fields that `metamirror evaluate --json` prints."""
    if tasks < 2:
        raise ValueError(f"tasks is {tasks}; an interval needs at least 2")
    config = load_config(run)
    learner = checkpoint.load(run)
    results = evaluate_stream(learner, build_stream(config, split, batch=1), tasks, steps=steps)
    loss, loss_interval = mean_and_interval([r.loss for r in results])
    found: dict[str, object] = {
        "method": config.method,
        "data": config.data,
        "split": split,
        "ways": None,
        "shots": config.shots,
        "queries": config.queries,
        "steps": learner.steps if steps is None else steps,
        "norm": learner.norm,
        "tasks": tasks,
        "seed": config.seed,
        "step": config.iterations,
        "loss": loss,
    }
    accuracies = [r.accuracy for r in results if r.accuracy is not None]
    if accuracies:
        found["accuracy"], found["ci95"] = mean_and_interval(accuracies)
    else:
        found["mse"], found["ci95"] = loss, loss_interval
    return found


def load_config(run: Path) -> RunConfig:
    """The configuration that a run wrote beside its results."""
    if not run.is_dir():
        raise ValueError(f"there is no run folder {run}")
    values, file = read_json(run / "config.json"), run / "config.json"
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds {type(values).__name__}, not a configuration")
    hints = get_type_hints(RunConfig)
    if unknown := sorted(set(values) - set(hints)):
        raise ValueError(f"{file} has the unknown key {unknown[0]!r}; known: {', '.join(hints)}")
    try:
        return RunConfig(**{name: convert(name, v, hints[name]) for name, v in values.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} does not fit this version: {error}") from error


def _accuracy(output: Tensor, labels: Tensor) -> float:
    return 100 * float((output.argmax(-1) == labels).to(torch.float64).mean())
