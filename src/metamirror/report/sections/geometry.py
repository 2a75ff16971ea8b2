"""What geometry was learned: whether it is a mirror map, and how far each layer steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metamirror.console import Progress
from metamirror.experiments.inspection import inspect_run
from metamirror.report.charts import Dot, dot_chart, legend
from metamirror.report.collect import Run, alike, in_short, on_same_tasks
from metamirror.report.figures.geometry import describe_geometry, verdict_in_words
from metamirror.report.markup import Child, Markup, table, tag
from metamirror.report.styles import styles_of

TASKS, POINTS = 1, 2
"""Of each inspection: enough for a page; `metamirror inspect` looks closer."""


@dataclass(frozen=True)
class Inspected:
    """One run of a method, and what `inspect_run` says of it."""

    label: str
    run: Run
    found: dict[str, Any]


def geometry_section(runs: Sequence[Run], seconds: float, data_dir: Path | None) -> list[Markup]:
    """One run of each method on the same tasks, inspected while there is time."""
    chosen = [
        # Of several seeds, the first of those that have come furthest.
        (title, label, max(some, key=lambda run: run.step))
        for title, group in on_same_tasks(runs).items()
        for label, some in alike(group)
    ]
    if not chosen or seconds <= 0:
        return []
    groups: dict[str, list[Inspected]] = {}
    problems: list[str] = []
    deadline = time.monotonic() + seconds
    with Progress("inspect geometry", len(chosen)) as progress:
        for done, (title, label, run) in enumerate(chosen):
            if time.monotonic() > deadline:
                left = ", ".join(run.name for _, _, run in chosen[done:])
                problems.append(f"not inspected, after {seconds:g} seconds: {left}")
                break
            try:
                found = inspect_run(run.path, tasks=TASKS, points=POINTS, data_dir=data_dir)
                groups.setdefault(title, []).append(Inspected(label, run, found))
            except (ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
                # Whatever is wrong with one run, the page has to tell of the others.
                problems.append(f"{run.name} cannot be inspected: {in_short(error, run.path)}")
            progress.update(done + 1, run.name)
    parts = [tag("p", problem, class_="problem") for problem in problems]
    for title, group in groups.items():
        parts += [tag("h3", title), *_verdicts(group), *_step_sizes(group)]
    return parts


def _verdicts(group: list[Inspected]) -> list[Markup]:
    rows: list[list[Child]] = []
    for one in group:
        seen = one.found
        valid = {True: "yes", False: "no", None: "no answer"}[seen["is_mirror_map"]]
        kind = {True: "good", False: "bad", None: ""}[seen["is_mirror_map"]]
        whole = tag(
            "details",
            tag("summary", verdict_in_words(seen)),
            tag("ul", [_item(line) for line in describe_geometry(seen)[1:]]),
        )
        bounds = seen["map_bounds"]
        slopes = "" if bounds is None else f"{bounds[0]:.3g} to {bounds[1]:.3g}"
        rows.append(
            [
                [one.label, tag("small", one.run.name)],
                tag("td", tag("span", valid, class_=kind)),
                tag("td", slopes.replace("-", "−"), class_="number"),
                tag("td", whole, class_="wide"),
            ]
        )
    head = ("method", "mirror map", "slopes of the map", "how that is known")
    note = (
        f"Whether the learned update is mirror descent with some h. One run of each method, around "
        f"{TASKS} adaptation, at {POINTS} points where that has to be measured; metamirror inspect "
        f"RUN looks closer."
    )
    return [tag("p", note, class_="note"), table(head, rows)]


def _item(line: str) -> Markup:
    return tag("li", line.strip(), class_="inner" if line.startswith(" ") else None)


def _step_sizes(group: list[Inspected]) -> list[Markup]:
    styles = styles_of(one.run.method for one in group)
    sizes = [one.found["effective_step_sizes"] for one in group]
    rows = [
        (
            layer,
            [
                Dot(one.label, style, own[layer])
                for one, style, own in zip(group, styles, sizes, strict=True)
                if own.get(layer, 0) > 0
            ],
        )
        for layer in dict.fromkeys(layer for own in sizes for layer in own)
    ]
    rates = {one.found["lr"] for one in group}
    chart = dot_chart(
        rows,
        title="effective step size of each layer",
        x_label="|change of φ| / |gradient|" + (" (dotted: α)" if len(rates) == 1 else ""),
        log=True,
        mark=rates.pop() if len(rates) == 1 else None,
    )
    names = legend(zip((one.label for one in group), styles, strict=True))
    return [names, tag("div", chart, class_="charts single")]
