"""What single tasks gave: the record of an evaluation, in memory and in a file."""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metamirror.core.files import to_json, write_atomically
from metamirror.core.metrics import LOSS, METRICS, Metric, metric_in


@dataclass(frozen=True)
class TaskResult:
    """The query results of one task during adaptation, and the path of its support set."""

    # query losses after every step that was evaluated, the last of which is K.
    losses: tuple[float, ...]
    # the same of the metric, accuracies in percent; None where the loss is the figure.
    scores: tuple[float, ...] | None
    metric: Metric = METRICS["accuracy"]  # what they are.
    support_losses: tuple[float, ...] = ()  # support losses before each of the K steps, k = 0..K-1.
    grad_norms: tuple[float, ...] = ()  # the norm of the gradient in phi, at the same points.

    @property
    def loss(self) -> float:
        """The query loss after the last step."""
        return self.losses[-1]

    @property
    def figures(self) -> tuple[float, ...]:
        """The scores, or the losses where they are the figure."""
        return self.losses if self.scores is None else self.scores

    @property
    def score(self) -> float:
        """The query set's figure after the last step."""
        return self.figures[-1]


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """Return the mean over tasks and half its 95 % interval, 1.96 std / sqrt(n)."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return sum(values) / len(values), float("nan")
    return statistics.fmean(values), 1.96 * statistics.stdev(values) / len(values) ** 0.5


def summary(results: list[TaskResult], point: int = -1) -> dict[str, float]:
    """Return the mean of the metric over tasks, its interval, and the mean loss."""
    loss, _ = mean_and_interval([r.losses[point] for r in results])
    mean, interval = mean_and_interval([r.figures[point] for r in results])
    return {results[0].metric.name: mean, "ci95": interval, "loss": loss}


def write_tasks(file: Path, results: list[TaskResult]) -> None:
    """Write the results of single tasks, a line each."""
    lines = []
    for i, result in enumerate(results):
        values: dict[str, object] = {"task": i, "loss": result.losses}
        if result.scores is not None:
            values[result.metric.name] = result.scores
        elif result.metric is LOSS:
            values["metric"] = LOSS.name
        lines.append(to_json(values, indent=None))
    write_atomically(file, ("\n".join(lines) + "\n").encode())


def read_tasks(file: Path) -> list[TaskResult]:
    """Read what `write_tasks` wrote; a figure that was not finite comes back as NaN."""

    def figures(values: list[float | None]) -> tuple[float, ...]:
        return tuple(math.nan if value is None else float(value) for value in values)

    def result(line: dict[str, Any]) -> TaskResult:
        scores = [name for name in line if name not in ("task", "loss", "metric")]
        # Files from before there were metrics have the squared error alone.
        metric = metric_in({"metric": scores[0] if scores else line.get("metric", "mse")})
        return TaskResult(
            figures(line["loss"]), figures(line[scores[0]]) if scores else None, metric
        )

    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found = [result(line) for line in lines]
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ValueError(f"{file} holds no results of tasks: {error}") from error
    if not found or not all(result.losses for result in found):
        raise ValueError(f"{file} holds no results of tasks: it is empty, or a task has none")
    return found
