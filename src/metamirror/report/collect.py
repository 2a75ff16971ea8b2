"""What a folder of runs holds, read without trust: what is damaged is named, not raised."""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from metamirror.core.files import read_json
from metamirror.core.metrics import Metric, metric_in
from metamirror.methods import METHODS
from metamirror.storage.locks import OWNER
from metamirror.training.config import RunConfig, labels_of, load_config
from metamirror.training.divergence import FOLDER as NONFINITE
from metamirror.training.evaluate_run import FOLDER as EVALUATIONS
from metamirror.training.logs.metrics_file import METRICS, seconds_per_iteration
from metamirror.training.run_folder import CONFIG, recorded

T = TypeVar("T")
Line = dict[str, float]
DOCUMENTS = ("table", "search", "convergence", "cost")
"""Files beside the runs that a page shows; each is a .json."""
FAILURES = ("diverged", "collapsed")
"""What a line of metrics says of a run that has failed."""
MOST_WORDS = 300
"""Characters of an error's message that are shown."""


@dataclass
class Run:
    """One run folder."""

    path: Path
    name: str  # its path within the folder of the report
    config: RunConfig | None = None  # None where it cannot be read
    metrics: list[Line] = field(default_factory=list)  # the numbers of each readable line
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # the one on most tasks last
    versions: dict[str, object] = field(default_factory=dict)  # what it was started with
    seconds: float | None = None  # of an iteration, by the run's own clock
    problems: list[str] = field(default_factory=list)  # what cannot be read or went wrong, in words

    @property
    def method(self) -> str:
        """The method with its options; "?" where the configuration cannot be read."""
        return "?" if self.config is None else self.config.method

    @property
    def step(self) -> int:
        """The last step in the metrics."""
        return int(max((line["step"] for line in self.metrics), default=0))

    @property
    def status(self) -> str:
        """The state of the run, in a few words."""
        if self.config is None:
            return "damaged"
        if not self.metrics:
            return "no metrics"
        last = next((line for line in reversed(self.metrics) if "loss" in line), {})
        for ending in FAILURES:
            if ending in last:
                return ending
        if self.step >= self.config.iterations:
            return "finished"
        doing = "in training" if (self.path / OWNER).exists() else "stopped"
        return f"{doing}, {self.step} of {self.config.iterations}"

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as a dictionary; empty where it is damaged."""
        return {} if self.config is None else asdict(self.config)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return (step, value) of one of the metrics."""
        return [(line["step"], line[name]) for line in self.metrics if name in line]

    @property
    def measure(self) -> Metric:
        """What its validations measured beside the loss; the loss, if nothing else."""
        beside = [key[4:] for line in self.metrics for key in line if key.startswith("val_")]
        name = next((key for key in beside if key not in ("ci95", "loss")), "loss")
        facts = next((e for e in self.evaluations if e.get("metric") == name), {})
        return metric_in({**facts, "metric": name})

    @property
    def test(self) -> dict[str, Any] | None:
        """The evaluation on most test tasks of the data and shots that it was trained for."""
        own: dict[str, Any] = {"split": "test"}
        own.update({key: self.settings[key] for key in ("data", "shots") if key in self.settings})

        def same(found: dict[str, Any]) -> bool:
            return all(found.get(key, value) == value for key, value in own.items())

        return next((e for e in reversed(self.evaluations) if "split" in e and same(e)), None)


@dataclass(frozen=True)
class Found:
    """What a folder holds."""

    runs: list[Run]  # in the order of the paper's table and of their names
    documents: dict[str, dict[str, dict[str, Any]]]  # by DOCUMENTS, then by folder ("" for this)
    problems: list[str]  # the documents that cannot be read, in words


def collect(folder: Path) -> Found:
    """Read every run and document in a folder and below it."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found = Found([], {name: {} for name in DOCUMENTS}, [])
    for place, below, files in os.walk(folder):
        path, top = Path(place), Path(place) == folder
        if is_run := CONFIG in files or METRICS in files:
            found.runs.append(_read(path, folder))
        # What is inside a run belongs to it; beside it there may be others.
        below[:] = sorted(below) if top or not is_run else []
        for name in DOCUMENTS:
            if f"{name}.json" in files and (top or not is_run):
                _add_document(found, name, path, folder)
    order = {key: place for place, key in enumerate(METHODS)}
    found.runs.sort(key=lambda run: (order.get(run.method.partition(":")[0], len(order)), run.path))
    return found


def _add_document(found: Found, name: str, place: Path, folder: Path) -> None:
    where = place.relative_to(folder)
    try:
        content = read_json(place / f"{name}.json")
    except (ValueError, OSError) as error:
        found.problems.append(in_short(error, folder))
        return
    if isinstance(content, dict):
        found.documents[name]["" if place == folder else str(where)] = content
    else:
        kind = type(content).__name__
        found.problems.append(f"{where / name}.json holds a {kind}; expected a dict")


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
    """Return an error's message for the page, without the place of the folder on this machine."""
    text = str(error)
    if folder.name:  # not of ".", which would take every full stop away
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), folder.name)
    return " ".join(text.split())[:MOST_WORDS]


def _metrics(run: Run) -> list[Line]:
    if not (run.path / METRICS).exists():
        return []
    lines, bad = [], 0
    for text in (run.path / METRICS).read_text(errors="replace").splitlines():
        try:
            values = dict_or_empty(json.loads(text))
        except (ValueError, RecursionError):
            values = {}
        line = {k: v for k, raw in values.items() if (v := number(raw)) is not None}
        if "step" in line:
            lines.append(line | {name: 1.0 for name in FAILURES if values.get(name) is True})
        else:
            bad += 1
    if bad:
        count = "1 line" if bad == 1 else f"{bad} lines"
        run.problems.append(f"{count} of {METRICS} cannot be read")
    return lines


def number(value: object) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def groups_of(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """Return readable runs by their data and shots, then by label; seeds share a label."""
    together: dict[str, dict[RunConfig, list[Run]]] = {}
    for run in runs:
        if (config := run.config) is not None:
            same_tasks = together.setdefault(f"{config.data}, {config.shots}-shot", {})
            same_tasks.setdefault(replace(config, seed=0), []).append(run)
    return {
        title: {label: group[config] for config, label in labels_of(group).items()}
        for title, group in together.items()
    }


def dicts_in(value: object) -> list[dict[str, Any]]:
    """Return the dictionaries in a value that should be a list of them."""
    return [e for e in value if isinstance(e, dict)] if isinstance(value, list) else []


def dict_or_empty(value: object) -> dict[str, Any]:
    """Return a value that should be a dictionary; an empty one if it is not."""
    return value if isinstance(value, dict) else {}
