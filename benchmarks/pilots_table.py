"""The short runs that came before the study, from results/study/pilots.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metamirror.core.files import read_json
from speed_table import NOTHING, markdown


def table(results: Path) -> str:
    """A line for each run: what was set, and what it reached on validation tasks."""
    file = results / "study" / "pilots.json"
    if not file.exists():
        return NOTHING
    head = ["data", "method", "iterations", "tasks", "schedule", "filters", "queries", "K", "α"]
    lines = [
        [
            run["data"],
            f"`{run['method']}`",
            str(run["iterations"]),
            str(run["tasks_per_step"]),
            run["schedule"],
            str(run["width"]),
            str(run["queries"]),
            str(run["steps"]),
            f"{run['lr']:g}",
            f"{run['outer_lr']:g}",
            _geometry_lr(run),
            f"{run['accuracy']:.1f} ± {run['ci95']:.1f}",
        ]
        for run in read_json(file)["runs"]
    ]
    return markdown([*head, "outer lr", "geometry lr", "validation, %"], lines, words=2)


def _geometry_lr(run: dict[str, Any]) -> str:
    """The outer learning rate of the geometry parameters, where there are any."""
    if run["method"] in ("maml", "anil"):
        return ""
    return f"{run['geometry_lr'] or run['outer_lr']:g}"
