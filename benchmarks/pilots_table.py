"""The short runs that came before the study, from results/study/pilots.json."""

from __future__ import annotations

from pathlib import Path

from metamirror.files import read_json
from speed_table import NOTHING, markdown


def table(results: Path) -> str:
    """A line for each run: what was set, and what it reached on validation tasks."""
    file = results / "study" / "pilots.json"
    if not file.exists():
        return NOTHING
    head = ["data", "method", "iterations", "schedule", "α", "outer rate", "beside the start"]
    lines = [
        [
            run["data"],
            f"`{run['method']}`",
            str(run["iterations"]),
            run["schedule"],
            f"{run['lr']:g}",
            f"{run['outer_lr']:g}",
            f"{run['geometry_lr'] or run['outer_lr']:g}" if run["method"] != "maml" else "",
            f"{run['accuracy']:.1f} ± {run['ci95']:.1f}",
        ]
        for run in read_json(file)["runs"]
    ]
    return markdown([*head, "validation, %"], lines, words=2)
