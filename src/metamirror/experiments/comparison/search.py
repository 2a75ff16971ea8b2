"""The inner step size of each row, chosen on validation tasks by one search for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from metamirror.experiments.comparison.grid import Cell
from metamirror.experiments.comparison.jobs import Job, Record

FOLDER = "search"


@dataclass(frozen=True)
class Search:
    """A search: short runs of the first seed with each step size, judged on validation tasks.

    Attributes:
        candidates: the step sizes.
        iterations: of each run.
        tasks: validation tasks.
    """

    candidates: tuple[float, ...]
    iterations: int
    tasks: int

    def check(self) -> None:
        """Refuses searches that find nothing."""
        if len(self.candidates) < 2:
            raise ValueError(f"search is {self.candidates}; give at least two step sizes")
        if self.iterations < 1:
            raise ValueError(f"search_iterations is {self.iterations}; it must be at least 1")
        if self.tasks < 2:
            raise ValueError(f"search_tasks is {self.tasks}; an interval needs at least 2")


@dataclass(frozen=True)
class Trial:
    """One run of the search, and the folder of the first run that will have its outcome."""

    label: str
    shots: int
    lr: float
    job: Job
    cell: str


def trials(cells: Sequence[Cell], search: Search) -> list[Trial]:
    """The runs of a search for the first cell of each row and number of shots.

    Nothing is selected inside a run: its last learner is judged.
    """
    found: dict[tuple[str, int], Cell] = {}
    for cell in cells:
        found.setdefault((cell.label, cell.config.shots), cell)
    return [
        Trial(label, shots, lr, _job(cell, lr, search), cell.folder)
        for (label, shots), cell in found.items()
        for lr in search.candidates
    ]


def _job(cell: Cell, lr: float, search: Search) -> Job:
    config = replace(cell.config, lr=lr, iterations=search.iterations, validate_every=0)
    name = f"{cell.name}-lr{lr:g}"
    return Job(name, "run", f"{FOLDER}/{name}", asdict(config), "val", search.tasks)


def choose(tried: Sequence[tuple[Trial, Record]], search: Search) -> dict[str, Any]:
    """What goes into search.json: every score, and the best step size of each row."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for trial, record in tried:
        row = rows.setdefault(
            (trial.label, trial.shots), {"label": trial.label, "shots": trial.shots, "scores": []}
        )
        row["scores"].append({"lr": trial.lr, **(record.found or {"reason": record.reason})})
    for row in rows.values():
        row["lr"] = best(row["scores"])
    return {**asdict(search), "split": "val", "rows": list(rows.values())}


def best(scores: Sequence[Mapping[str, Any]]) -> float | None:
    """The step size with the highest accuracy or lowest error; the first of equals."""

    def worth(score: Mapping[str, Any]) -> float:
        value = score.get("accuracy", -score["mse"] if score.get("mse") is not None else None)
        return -math.inf if value is None or math.isnan(value) else value

    top = max(scores, key=worth)
    lr: float = top["lr"]
    return lr if worth(top) > -math.inf else None


def at_the_edge(found: Mapping[str, Any]) -> list[str]:
    """Rows whose best step size is the smallest or largest tried: the best may lie beyond."""
    ends = (min(found["candidates"]), max(found["candidates"]))
    return [
        f"{r['label']} ({r['shots']}-shot: {r['lr']:g})" for r in found["rows"] if r["lr"] in ends
    ]
