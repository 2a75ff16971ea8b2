"""The table itself, from what the runs have left on disk."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metamirror.experiments.comparison.entries import BASELINE
from metamirror.experiments.comparison.jobs import Job, Record, read_record
from metamirror.experiments.comparison.plan import Row
from metamirror.experiments.statistics import Figures, estimate
from metamirror.training.evaluate import read_tasks
from metamirror.training.metrics_log import seconds_per_iteration

BySeed = Mapping[int | None, Figures]


def make_table(out: Path, protocol: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """What goes into table.json.

    It is computed from files alone, so that it is the same however often the comparison was
    stopped. Only `seconds_per_iteration` and `relative_to_maml` are wall-clock figures.
    """
    measure = "accuracy" if protocol["classes"] else "mse"
    figures = {(row.label, row.shots): _figures(out, row, measure) for row in rows}
    table = []
    for row in rows:
        base = figures.get((BASELINE, row.shots), {})
        table.append(_row(out, row, measure, figures[row.label, row.shots], base))
    _add_relative_times(table)
    _add_bold(table, measure)
    return {"protocol": dict(protocol), "rows": table}


def _figures(out: Path, row: Row, measure: str) -> dict[int | None, Figures]:
    """By seed, what was measured on each test task."""
    found = {}
    for seed, job in row.jobs.items():
        record = read_record(out, job)
        if record is None or record.found is None or record.tasks_file is None:
            continue
        results = read_tasks(out / record.tasks_file)
        found[seed] = np.array([r.loss if measure == "mse" else r.accuracy for r in results])
    return found


def _row(out: Path, row: Row, measure: str, own: BySeed, base: BySeed) -> dict[str, Any]:
    whole = estimate(np.stack(list(own.values()))) if own else None
    status, reason = _status(out, row)
    return {
        "method": row.label,
        "title": row.title,
        "optimizer": row.optimizer,
        "geometry": row.geometry,
        "kind": row.kind,
        "shots": row.shots,
        measure: None if whole is None else whole.mean,
        "ci95": None if whole is None else whole.half,
        "seeds": [
            {
                "seed": seed,
                measure: (one := estimate(values[None])).mean,
                "ci95": one.half,
                "run": row.jobs[seed].folder,
            }
            for seed, values in own.items()
        ],
        "published": row.published,
        "difference_to_maml": None if row.label == BASELINE else difference(own, base),
        "extra_parameters": row.extra,
        "seconds_per_iteration": _seconds(out, row),
        "status": status,
        "reason": reason,
        "note": row.note,
    }


def difference(own: BySeed, base: BySeed) -> dict[str, Any] | None:
    """A row less the baseline, with its paired 95 % interval.

    Task by task, and seed by seed: runs of one seed share their start and their training tasks.
    What was not trained has no seed, and is paired with every run of the baseline.
    """
    pairs = [
        (own[None] if None in own else own[seed]) - values
        for seed, values in base.items()
        if None in own or seed in own
    ]
    if not pairs:
        return None
    found = estimate(np.stack(pairs))
    return {"mean": found.mean, "low": found.low, "high": found.high, "seeds": len(pairs)}


def _status(out: Path, row: Row) -> tuple[str, str | None]:
    """Done, if every seed is; a row that lost a seed says so, whatever its figures."""
    records = {seed: read_record(out, job) for seed, job in row.jobs.items()}
    failed = {seed: r.reason for seed, r in records.items() if r is not None and r.found is None}
    if failed:
        return "failed", "; ".join(
            reason or "" if seed is None else f"seed {seed}: {reason}"
            for seed, reason in failed.items()
        )
    missing = [seed for seed, record in records.items() if record is None]
    if missing:
        return "missing", f"{len(missing)} of {len(records)} not done"
    return "done", None


def _seconds(out: Path, row: Row) -> float | None:
    found = [
        seconds
        for job in row.jobs.values()
        if job.work == "run" and (seconds := seconds_per_iteration(out / str(job.folder)))
    ]
    return statistics.median(found) if found else None


def _add_relative_times(table: list[dict[str, Any]]) -> None:
    base = {r["shots"]: r["seconds_per_iteration"] for r in table if r["method"] == BASELINE}
    for row in table:
        own, other = row["seconds_per_iteration"], base.get(row["shots"])
        row["relative_to_maml"] = own / other if own and other else None


def _add_bold(table: list[dict[str, Any]], measure: str) -> None:
    """The best of each number of shots, and all within its interval; controls no less."""
    sign = 1 if measure == "accuracy" else -1
    for row in table:
        rivals = [
            r
            for r in table
            if r["shots"] == row["shots"] and r["status"] == "done" and r["ci95"] == r["ci95"]
        ]
        best = max(rivals, key=lambda r: sign * r[measure], default=None)
        row["bold"] = (
            best is not None
            and row in rivals
            and sign * row[measure] >= sign * best[measure] - best["ci95"]
        )


def failures(out: Path, jobs: Sequence[Job]) -> dict[str, Record]:
    """Jobs that have failed, by name."""
    records = {job.name: read_record(out, job) for job in jobs}
    return {name: r for name, r in records.items() if r is not None and r.found is None}
