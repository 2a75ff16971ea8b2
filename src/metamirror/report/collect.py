"""What stands in a folder of runs, read without trust: what is damaged is named, not raised."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from metamirror.methods import METHODS
from metamirror.storage.atomic import read_json
from metamirror.storage.locks import OWNER
from metamirror.training.config import RunConfig, labels_of, load_config
from metamirror.training.divergence import FOLDER as NONFINITE
from metamirror.training.evaluate import FOLDER as EVALUATIONS
from metamirror.training.metrics_log import METRICS, seconds_per_iteration
from metamirror.training.run_folder import CONFIG, recorded

T = TypeVar("T")
Line = dict[str, float]
MOST_WORDS = 300
"""Characters of a complaint that are shown."""


@dataclass
class Run:
    """One run folder.

    Attributes:
        path: of the folder.
        name: its path within the folder of the report.
        config: None where it cannot be read.
        metrics: one entry for each readable line of metrics.jsonl, with its numbers alone.
        evaluations: the readable summaries, the one on most tasks last.
        versions: what the run was started with.
        seconds: of an iteration, by the run's own clock.
        problems: what cannot be read, and what went wrong, in words.
    """

    path: Path
    name: str
    config: RunConfig | None = None
    metrics: list[Line] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, object] = field(default_factory=dict)
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        """As far as it is known."""
        return "?" if self.config is None else self.config.method

    @property
    def step(self) -> int:
        """The last one that has been written down."""
        return int(max((line["step"] for line in self.metrics), default=0))

    @property
    def status(self) -> str:
        """In a few words."""
        if self.config is None:
            return "damaged"
        if not self.metrics:
            return "no metrics"
        if self.step >= self.config.iterations:
            return "finished"
        doing = "in training" if (self.path / OWNER).exists() else "stopped"
        return f"{doing}, {self.step} of {self.config.iterations}"

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as a dictionary; empty where it is damaged."""
        return {} if self.config is None else asdict(self.config)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of one of the metrics."""
        return [(line["step"], line[name]) for line in self.metrics if name in line]

    @property
    def test(self) -> dict[str, Any] | None:
        """The evaluation on most test tasks."""
        return next((e for e in reversed(self.evaluations) if e.get("split") == "test"), None)


def collect(folder: Path) -> list[Run]:
    """Every run in a folder and below it, in the order of the paper's table and of their names."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    runs = [_read(path, folder) for path in sorted(_run_folders(folder))]
    runs.sort(key=_place)
    return runs


def _place(run: Run) -> int:
    keys, key = list(METHODS), run.method.partition(":")[0]
    return keys.index(key) if key in keys else len(keys)


def _run_folders(folder: Path) -> Iterator[Path]:
    return (place for place, files in _folders(folder) if _is_run(files))


def _folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder with its files, but none inside a run."""
    for place, below, files in os.walk(folder):
        yield Path(place), files
        # Beside runs there may be others, if this is the folder that was asked for.
        below[:] = [] if _is_run(files) and Path(place) != folder else sorted(below)


def _is_run(files: Sequence[str]) -> bool:
    return CONFIG in files or METRICS in files


def _read(path: Path, folder: Path) -> Run:
    run = Run(path, folder.resolve().name if path == folder else str(path.relative_to(folder)))
    run.config = _attempt(run, lambda: load_config(path / CONFIG))
    run.versions = _attempt(run, lambda: recorded(path)) or {}
    run.metrics = _attempt(run, lambda: _metrics(run)) or []
    run.seconds = _attempt(run, lambda: seconds_per_iteration(path))
    for file in sorted((path / EVALUATIONS).glob("*.json")):
        found = _attempt(run, lambda file=file: read_json(file))  # type: ignore[misc]
        if isinstance(found, dict):
            run.evaluations.append(found)
        elif found is not None:
            run.problems.append(f"{file.name} holds no evaluation")
    run.evaluations.sort(key=lambda e: number(e.get("tasks")) or 0)
    if (path / NONFINITE).is_dir():
        run.problems.append(f"values that were not finite: see {NONFINITE}/ in the run")
    return run


def _attempt(run: Run, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (ValueError, OSError) as error:
        run.problems.append(in_short(error, run.path))
        return None


def in_short(error: Exception, folder: Path) -> str:
    """A complaint for the page, on which the place of a folder on this machine has no business."""
    text = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), folder.name)
    return " ".join(text.split())[:MOST_WORDS]


def _metrics(run: Run) -> list[Line]:
    if not (run.path / METRICS).exists():
        return []
    lines, bad = [], 0
    for text in (run.path / METRICS).read_text(errors="replace").splitlines():
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        values = entry if isinstance(entry, dict) else {}
        line = {k: v for k, raw in values.items() if (v := number(raw)) is not None}
        if "step" in line:
            lines.append(line)
        else:
            bad += 1
    if bad:
        count = "1 line" if bad == 1 else f"{bad} lines"
        run.problems.append(f"{count} of {METRICS} cannot be read")
    return lines


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def alike(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Readable runs with what to call them; those that differ in their seed alone are together."""
    labels = labels_of(run.config for run in runs if run.config is not None)
    together: dict[str, list[Run]] = {label: [] for label in labels.values()}
    for run in runs:
        if run.config is not None:
            together[labels[replace(run.config, seed=0)]].append(run)
    return list(together.items())


def on_same_tasks(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Readable runs by their data and shots, in words."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        if run.config is not None:
            title = f"{run.config.data}, {run.config.shots}-shot"
            together.setdefault(title, []).append(run)
    return together


def documents(folder: Path, name: str, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The readable files of one name beside the runs, by the folder they are in ("" for this)."""
    found = {}
    for place, files in _folders(folder):
        # What is inside a run belongs to it.
        if name not in files or (_is_run(files) and place != folder):
            continue
        where = place.relative_to(folder)
        try:
            content = read_json(place / name)
        except (ValueError, OSError) as error:
            problems.append(in_short(error, folder))
            continue
        if isinstance(content, dict):
            found["" if place == folder else str(where)] = content
        else:
            kind = type(content).__name__
            problems.append(f"{where / name} holds {kind}, and a table was expected")
    return found


def entries(value: object) -> list[dict[str, Any]]:
    """The dictionaries of a list that may be anything."""
    return [e for e in value if isinstance(e, dict)] if isinstance(value, list) else []


def mapping(value: object) -> dict[str, Any]:
    """A dictionary, empty if it is none."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return a value in words; None is none."""
    return "" if value is None else str(value)
