"""The step sizes of each row, chosen on validation tasks by one search for all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from metamirror.core.metrics import metric_in
from metamirror.data.sizes import Count
from metamirror.experiments.comparison.jobs import Job, Record
from metamirror.experiments.comparison.table import Row
from metamirror.training.config import parse_config

FOLDER = "search"
RATES = ("lr", "geometry_lr")
"""What a search chooses of a run: the inner step size, the geometry's outer learning rate."""
Rates = Mapping[str, float]
"""What it chose, or tries, by RATES. A geometry_lr of zero holds the geometry still."""
Tried = Sequence[tuple[Rates, Job]]


@dataclass(frozen=True)
class Search:
    """A search: short runs of the first seed with each choice, evaluated on validation tasks.

    Rows with geometry parameters try each candidate with each of the `geometry` rates.
    """

    candidates: tuple[float, ...]  # inner step sizes
    iterations: int  # of each run
    tasks: int  # of the validation split
    geometry: tuple[float, ...] = ()  # outer learning rates of the geometry; empty: the usual

    def __post_init__(self) -> None:
        if len(self.candidates) < 2 and len(self.geometry) < 2:
            raise ValueError(f"search is {self.candidates}; give at least two step sizes")
        if self.iterations < 1:
            raise ValueError(f"search_iterations is {self.iterations}; it must be at least 1")
        if self.tasks < 2:
            raise ValueError(f"search_tasks is {self.tasks}; an interval needs at least 2")

    def jobs(self, row: Row) -> Tried:
        """Return what a row tries, each with a short run that is like the row's first one.

        Nothing is selected inside a run: its last learner is evaluated.
        """
        first = next(iter(row.jobs.values()))
        # Without an inner step, every step size is the same.
        candidates = self.candidates if first.config["steps"] else self.candidates[:1]
        choices: list[Rates] = [{"lr": lr} for lr in candidates]
        if row.extra_parameters and self.geometry:
            choices = [{**own, "geometry_lr": rate} for own in choices for rate in self.geometry]
        found = []
        for choice in choices:
            own = {"iterations": self.iterations, "validate_every": 0, **choice}
            config = parse_config(first.config | own, first.name)
            # Before anything is trained: in its own process it would be one failed run of many.
            config.check()
            name = f"{first.name}-lr{choice['lr']:g}"
            if "geometry_lr" in choice:
                name += f"-geometry{choice['geometry_lr']:g}"
            job = replace(first, name=name, folder=f"{FOLDER}/{name}", config=asdict(config))
            found.append((choice, replace(job, split="val", tasks=self.tasks)))
        return found


def searched_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that a search is for: those with runs of their own."""
    found: dict[str, Row] = {}
    for row in rows:
        job = next(iter(row.jobs.values()))
        if job.work == "run":
            found.setdefault(job.name, row)
    return list(found.values())


def choose(
    search: Search, tried: Sequence[tuple[Row, Tried]], records: Mapping[str, Record]
) -> dict[str, Any]:
    """Return what goes into search.json: every score, and the best step sizes of each row."""
    rows = []
    for row, jobs in tried:
        scores = []
        for rates, job in jobs:
            record, every = records.get(job.name, Record()), dict.fromkeys(RATES) | dict(rates)
            scores.append(every | (record.found or {"reason": record.reason}))
        chosen = best(scores)
        own = {"lr": None} if chosen is None else {key: chosen[key] for key in RATES}
        rows.append({"label": row.method, "shots": row.shots, "scores": scores, **own})
    return {**asdict(search), "split": "val", "rows": rows}


def best(scores: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the score with the best figure; the first of equals."""

    def worth(score: Mapping[str, Any]) -> float:
        measure = metric_in(score)
        value = score.get(measure.name)
        return -math.inf if value is None or math.isnan(value) else measure.worth(value)

    top = max(scores, key=worth)
    return top if worth(top) > -math.inf else None


def chosen_rates(found: Mapping[str, Any] | None) -> dict[tuple[str, Count], Rates]:
    """Return what a search chose, by row and shots."""
    rows = [] if found is None else found["rows"]
    return {
        (r["label"], r["shots"]): {key: r[key] for key in RATES if r[key] is not None}
        for r in rows
        if r["lr"] is not None
    }


def at_the_edge(found: Mapping[str, Any]) -> list[str]:
    """Return rows whose best inner step size is the smallest or largest tried: it may lie beyond.

    Of two candidates each is an end, which says nothing.
    """
    if len(found["candidates"]) < 3:
        return []
    ends = (min(found["candidates"]), max(found["candidates"]))
    return [
        f"{r['label']} ({r['shots']}-shot: {r['lr']:g})"
        for r in found["rows"]
        if r["lr"] in ends and len({score["lr"] for score in r["scores"]}) > 1
    ]
