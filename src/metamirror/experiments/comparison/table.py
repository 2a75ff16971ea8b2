"""The table: a row for each method and number of shots, from what the jobs have left on disk."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from metamirror.core.metrics import LOSS, METRICS, Metric, described, metric_in
from metamirror.data.sizes import Count
from metamirror.experiments.comparison.jobs import Job, Record
from metamirror.experiments.statistics import BASELINE, Figures, estimate
from metamirror.methods.registry import Group
from metamirror.training.logs.metrics_file import seconds_per_iteration
from metamirror.training.task_results import TaskResult, read_tasks

BySeed = Mapping[int | None, Figures]
MISSING = "–"


@dataclass(frozen=True)
class Row:
    """One line of the table, for one number of shots."""

    method: str  # its label: a method's key, with options where there are some
    title: str  # what people call it
    optimizer: str  # of the lower level
    geometry: str  # of the loss
    group: Group  # of methods, or "control" for what is added to compare with
    shots: Count  # examples a class, or a range of which each task draws
    measure: Metric = METRICS["accuracy"]  # what `value` is
    value: float | None = None  # the mean over test tasks and seeds
    ci95: float | None = None  # half its 95 % interval
    seeds: Sequence[Mapping[str, Any]] = ()  # seed, measure, ci95 and run (a folder) of each
    published: str | None = None  # what the paper's table lists, if it is about these tasks
    difference_to_maml: Mapping[str, Any] | None = None  # paired, as in `difference`
    extra_parameters: int | None = None  # what is learned in addition to the start
    seconds_per_iteration: float | None = None  # by the runs' own clocks
    status: str = "missing"  # or "done", or "failed"
    reason: str | None = None  # what is missing, or why it failed
    note: str | None = None  # what a reader must know of it
    relative_to_maml: float | None = None  # its time over MAML's
    bold: bool = False  # whether it is the best, or within the best one's interval
    # What follows is not in table.json.
    jobs: Mapping[int | None, Job] = field(default_factory=dict)  # by seed
    spec: str = ""  # the method as in a run's configuration
    runs: str = ""  # the label of its runs: another row's, if those are the same runs
    recipe: Mapping[str, Any] = field(default_factory=dict)  # in place of the common settings

    def to_json(self) -> dict[str, Any]:
        """Return the row as table.json has it: values under the name of the measure."""
        hidden = ("measure", "jobs", "spec", "runs", "recipe")
        names = [f.name for f in fields(self) if f.name not in hidden]
        return {
            self.measure.name if name == "value" else name: getattr(self, name) for name in names
        }


def plus_minus(measure: Metric, value: float | None, half: float | None) -> str:
    """Return a figure with half its interval.

    >>> plus_minus(METRICS["accuracy"], 48.701, 1.838)
    '48.70 ± 1.84'
    """
    if value is None:
        return MISSING
    digits = measure.digits
    return f"{value:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def make_table(
    protocol: Mapping[str, Any], rows: Sequence[Row], records: Mapping[str, Record]
) -> dict[str, Any]:
    """Return what goes into table.json.

    It depends on the jobs' records (by the name of the job) alone, so that it is the same however
    often the comparison was stopped. Only `seconds_per_iteration` and `relative_to_maml` are
    wall-clock figures.
    """
    results = {(row.method, row.shots): _results(row, records) for row in rows}
    every = [result for own in results.values() for some in own.values() for result in some]
    # A metric that the outputs do not allow gives way to the loss.
    measure = metric_in(protocol["metric"])
    if any(result.metric is LOSS for result in every):
        measure = LOSS
    protocol = {**protocol, "metric": described(measure)}
    figures = {
        key: {
            seed: np.array([r.loss if measure is LOSS else r.score for r in some])
            for seed, some in own.items()
        }
        for key, own in results.items()
    }
    filled = []
    for row in rows:
        own, base = figures[row.method, row.shots], figures.get((BASELINE, row.shots), {})
        filled.append(_filled(replace(row, measure=measure), own, base, records))
    times = {row.shots: row.seconds_per_iteration for row in filled if row.method == BASELINE}
    for i, row in enumerate(filled):
        time, other = row.seconds_per_iteration, times.get(row.shots)
        filled[i] = replace(row, relative_to_maml=time / other if time and other else None)
    return {"protocol": dict(protocol), "rows": [row.to_json() for row in with_bold(filled)]}


def _results(row: Row, records: Mapping[str, Record]) -> dict[int | None, list[TaskResult]]:
    """Return, by seed, what was measured on each test task."""
    found = {}
    for seed, job in row.jobs.items():
        if (record := records.get(job.name)) is not None and record.tasks_file is not None:
            found[seed] = read_tasks(Path(job.out, record.tasks_file))
    return found


def _filled(row: Row, own: BySeed, base: BySeed, records: Mapping[str, Record]) -> Row:
    whole = estimate(np.stack(list(own.values()))) if own else None
    seeds = []
    for seed, values in own.items():
        one, run = estimate(values[None]), row.jobs[seed].folder
        seeds.append({"seed": seed, row.measure.name: one.mean, "ci95": one.half, "run": run})
    times = [
        seconds
        for job in row.jobs.values()
        if job.work == "run" and (seconds := seconds_per_iteration(Path(job.out, str(job.folder))))
    ]
    status, reason = _status(row, records)
    return replace(
        row,
        value=None if whole is None else whole.mean,
        ci95=None if whole is None else whole.half,
        seeds=seeds,
        difference_to_maml=None if row.method == BASELINE else difference(own, base),
        seconds_per_iteration=statistics.median(times) if times else None,
        status=status,
        reason=reason,
    )


def difference(own: BySeed, base: BySeed) -> dict[str, Any] | None:
    """Return a row less the baseline, with its paired 95 % interval.

    Task by task, and seed by seed: runs of one seed share their start and their training tasks.
    What was not trained has no seed, and is paired with every run of the baseline.
    """
    wanted = {seed: None if None in own else seed for seed in base}
    pairs = [own[wanted[s]] - values for s, values in base.items() if wanted[s] in own]
    if not pairs:
        return None
    found = estimate(np.stack(pairs))
    return {"mean": found.mean, "low": found.low, "high": found.high, "seeds": len(pairs)}


def _status(row: Row, records: Mapping[str, Record]) -> tuple[str, str | None]:
    """Return "done" if every seed is; a row that lost a seed says so, whatever its figures."""
    known = {s: records[job.name] for s, job in row.jobs.items() if job.name in records}
    failed = [
        str(record.reason) if seed is None else f"seed {seed}: {record.reason}"
        for seed, record in known.items()
        if not record.done
    ]
    if failed:
        return "failed", "; ".join(failed)
    if missing := len(row.jobs) - len(known):
        return "missing", f"{missing} of {len(row.jobs)} not done"
    return "done", None


def with_bold(rows: Sequence[Row]) -> list[Row]:
    """Mark the best of each number of shots, and all within its interval; controls no less."""

    def worth(row: Row) -> float:
        assert row.value is not None
        return row.measure.worth(row.value)

    # An interval that is not finite decides nothing.
    able = [row for row in rows if row.status == "done" and row.ci95 == row.ci95]
    limits: dict[Count, float] = {}
    for best in sorted(able, key=worth, reverse=True):
        limits.setdefault(best.shots, worth(best) - (best.ci95 or 0))
    return [replace(row, bold=row in able and worth(row) >= limits[row.shots]) for row in rows]
