"""The geometry that each method learned: is it a mirror map, and how far does each layer step?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metamirror.console import Progress
from metamirror.experiments.inspection import inspect_run
from metamirror.report.charts import Dot, dot_chart
from metamirror.report.collect import Run, groups_of, in_short
from metamirror.report.figures.geometry import describe_geometry, verdict_in_words
from metamirror.report.styles import styles_of

TASKS, POINTS = 1, 2
"""Of each inspection: enough for a page; `metamirror inspect` examines a run in more detail."""
Inspected = tuple[str, Run, dict[str, Any]]
"""A label, a run, and what `inspect_run` found."""


def geometry(runs: Sequence[Run], seconds: float, data_dir: Path | None) -> dict[str, Any] | None:
    """Inspect one run of each method on the same tasks, while there is time."""
    chosen = [
        # Of several seeds, the first of those that have come furthest.
        (title, label, max(some, key=lambda run: run.step))
        for title, group in groups_of(runs).items()
        for label, some in group.items()
    ]
    if not chosen or seconds <= 0:
        return None
    groups: dict[str, list[Inspected]] = {}
    problems: list[str] = []
    deadline = time.monotonic() + seconds
    with Progress("inspect geometry", len(chosen)) as progress:
        for done, (title, label, run) in enumerate(chosen):
            if time.monotonic() > deadline:
                left = ", ".join(run.name for _, _, run in chosen[done:])
                problems.append(f"not inspected within {seconds:g} seconds: {left}")
                break
            try:
                found = inspect_run(run.path, tasks=TASKS, points=POINTS, data_dir=data_dir)
                groups.setdefault(title, []).append((label, run, found))
            except (ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
                # Whatever is wrong with one run, the page has to show the others.
                problems.append(f"{run.name} cannot be inspected: {in_short(error, run.path)}")
            progress.update(done + 1, run.name)
    shown = [_group(title, group) for title, group in groups.items()]
    return {"problems": problems, "groups": shown, "tasks": TASKS, "points": POINTS}


def _group(title: str, group: list[Inspected]) -> dict[str, Any]:
    styles = styles_of(run.method for _, run, _ in group)
    legend = [(label, style) for (label, _, _), style in zip(group, styles, strict=True)]
    sizes = [found["effective_step_sizes"] for _, _, found in group]
    layers = dict.fromkeys(layer for own in sizes for layer in own)
    rows: dict[str, list[Dot]] = {
        layer: [
            Dot(label, style, own[layer])
            for (label, style), own in zip(legend, sizes, strict=True)
            if own.get(layer, 0) > 0
        ]
        for layer in layers
    }
    rates = {found["lr"] for _, _, found in group}
    chart = dot_chart(
        list(rows.items()),
        title="effective step size of each layer",
        x_label="|change of φ| / |gradient|" + (" (dotted: α)" if len(rates) == 1 else ""),
        log=True,
        mark=rates.pop() if len(rates) == 1 else None,
    )
    inspected = [
        (label, run, found, verdict_in_words(found), describe_geometry(found)[1:])
        for label, run, found in group
    ]
    return {"title": title, "inspected": inspected, "legend": legend, "chart": chart}
