"""The step sizes of each row, chosen on validation tasks by one search for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from metamirror.experiments.comparison.grid import Cell, Rates
from metamirror.experiments.comparison.jobs import Job, Record

FOLDER = "search"


@dataclass(frozen=True)
class Search:
    """A search: short runs of the first seed with each choice, judged on validation tasks.

    Attributes:
        candidates: inner step sizes.
        iterations: of each run.
        tasks: validation tasks.
        geometry: outer step sizes of what is learned beside the start, each tried with each of
            the candidates by the rows that learn something there; none leaves it as it is.
    """

    candidates: tuple[float, ...]
    iterations: int
    tasks: int
    geometry: tuple[float, ...] = ()

    def check(self) -> None:
        """Refuses searches that find nothing."""
        if len(self.candidates) < 2 and len(self.geometry) < 2:
            raise ValueError(f"search is {self.candidates}; give at least two step sizes")
        if self.iterations < 1:
            raise ValueError(f"search_iterations is {self.iterations}; it must be at least 1")
        if self.tasks < 2:
            raise ValueError(f"search_tasks is {self.tasks}; an interval needs at least 2")

    def choices(self, extra: int) -> list[Rates]:
        """What a row tries that learns so many parameters beside its start."""
        beside: tuple[float | None, ...] = self.geometry if extra and self.geometry else (None,)
        return [Rates(lr, rate) for lr in self.candidates for rate in beside]


@dataclass(frozen=True)
class Trial:
    """One run of the search, and the folder of the first run that will have its outcome."""

    label: str
    shots: int
    rates: Rates
    job: Job
    cell: str


def trials(cells: Sequence[Cell], search: Search, extra: Mapping[str, int]) -> list[Trial]:
    """The runs of a search for the first cell of each row and number of shots.

    Nothing is selected inside a run: its last learner is judged.

    Args:
        cells: of the grid.
        search: what to try.
        extra: parameters beside the start, by row.
    """
    found: dict[tuple[str, int], Cell] = {}
    for cell in cells:
        found.setdefault((cell.label, cell.config.shots), cell)
    return [
        Trial(label, shots, rates, _job(cell, rates, search), cell.folder)
        for (label, shots), cell in found.items()
        for rates in search.choices(extra[label])
    ]


def _job(cell: Cell, rates: Rates, search: Search) -> Job:
    config = replace(
        cell.config,
        lr=rates.lr,
        geometry_lr=rates.beside(cell.config.geometry_lr),
        iterations=search.iterations,
        validate_every=0,
    )
    # Here, before anything is trained: in its own process it would be one failed trial of many.
    config.check()
    name = f"{cell.name}-lr{rates.lr:g}"
    if rates.geometry_lr is not None:
        name += f"-geometry{rates.geometry_lr:g}"
    return Job(name, "run", f"{FOLDER}/{name}", asdict(config), "val", search.tasks)


def choose(tried: Sequence[tuple[Trial, Record]], search: Search) -> dict[str, Any]:
    """What goes into search.json: every score, and the best step sizes of each row."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for trial, record in tried:
        row = rows.setdefault(
            (trial.label, trial.shots), {"label": trial.label, "shots": trial.shots, "scores": []}
        )
        outcome = record.found or {"reason": record.reason}
        row["scores"].append({**asdict(trial.rates), **outcome})
    for row in rows.values():
        row.update(asdict(found) if (found := best(row["scores"])) else {"lr": None})
    return {**asdict(search), "split": "val", "rows": list(rows.values())}


def best(scores: Sequence[Mapping[str, Any]]) -> Rates | None:
    """The step sizes with the highest accuracy or lowest error; the first of equals."""

    def worth(score: Mapping[str, Any]) -> float:
        value = score.get("accuracy", -score["mse"] if score.get("mse") is not None else None)
        return -math.inf if value is None or math.isnan(value) else value

    top = max(scores, key=worth)
    return Rates(top["lr"], top.get("geometry_lr")) if worth(top) > -math.inf else None


def at_the_edge(found: Mapping[str, Any]) -> list[str]:
    """Rows whose best inner step size is the smallest or largest tried: it may lie beyond.

    Of two candidates each is an end, which says nothing.
    """
    if len(found["candidates"]) < 3:
        return []
    ends = (min(found["candidates"]), max(found["candidates"]))
    return [
        f"{r['label']} ({r['shots']}-shot: {r['lr']:g})" for r in found["rows"] if r["lr"] in ends
    ]
