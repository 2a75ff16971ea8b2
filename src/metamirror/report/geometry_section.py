"""What geometry was learned: whether it is a mirror map, and how far each layer steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metamirror.experiments.inspection import inspect_run
from metamirror.progress import Progress
from metamirror.report.charts import Dot, dot_chart, legend
from metamirror.report.collect import Run, in_short
from metamirror.report.geometry import describe_geometry, verdict_in_words
from metamirror.report.markup import Child, Markup, table, tag
from metamirror.report.styles import style_of

TASKS, POINTS = 1, 2
"""Of each inspection: enough for a page; `metamirror inspect` looks closer."""


def geometry_section(runs: Sequence[Run], seconds: float, data_dir: Path | None) -> list[Markup]:
    """The first run of each method on the same tasks, inspected while there is time."""
    chosen: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        if run.config is not None:
            key = (run.config.data, run.method, run.config.shots)
            if key not in chosen or (run.step, -run.config.seed) > (
                chosen[key].step,
                -_seed(chosen[key]),
            ):
                chosen[key] = run
    if not chosen or seconds <= 0:
        return []
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    deadline = time.monotonic() + seconds
    with Progress("inspect geometry", len(chosen)) as progress:
        for done, run in enumerate(chosen.values(), start=1):
            if time.monotonic() > deadline:
                left = ", ".join(r.name for r in list(chosen.values())[done - 1 :])
                problems.append(f"not inspected, after {seconds:g} seconds: {left}")
                break
            try:
                found[run.name] = inspect_run(
                    run.path, tasks=TASKS, points=POINTS, data_dir=data_dir
                )
            except (ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
                # Whatever is wrong with one run, the page has to tell of the others.
                problems.append(f"{run.name} cannot be inspected: {in_short(error, run.path)}")
            progress.update(done, run.name)
    groups: dict[tuple[str, int], list[Run]] = {}
    for (data, _, shots), run in chosen.items():
        if run.name in found:
            groups.setdefault((data, shots), []).append(run)
    parts = [tag("p", problem, class_="problem") for problem in problems]
    for (data, shots), group in groups.items():
        parts += [tag("h3", f"{data}, {shots}-shot"), *_verdicts(group, found)]
        parts += _step_sizes(group, found)
    return parts


def _seed(run: Run) -> int:
    return 0 if run.config is None else run.config.seed


def _verdicts(group: list[Run], found: dict[str, dict[str, Any]]) -> list[Markup]:
    rows: list[list[Child]] = []
    for run in group:
        seen = found[run.name]
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
                [run.method, tag("small", run.name)],
                tag("td", tag("span", valid, class_=kind)),
                tag("td", slopes, class_="number"),
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


def _step_sizes(group: list[Run], found: dict[str, dict[str, Any]]) -> list[Markup]:
    layers = dict.fromkeys(
        layer for run in group for layer in found[run.name]["effective_step_sizes"]
    )
    rows = [
        (
            layer,
            [
                Dot(run.method, style_of(run.method), size)
                for run in group
                if (size := found[run.name]["effective_step_sizes"].get(layer, 0)) > 0
            ],
        )
        for layer in layers
    ]
    rates = {found[run.name]["lr"] for run in group}
    chart = dot_chart(
        rows,
        title="effective step size of each layer",
        x_label="|change of φ| / |gradient|" + (" (dotted: α)" if len(rates) == 1 else ""),
        log=True,
        mark=rates.pop() if len(rates) == 1 else None,
    )
    names = legend((run.method, style_of(run.method)) for run in group)
    return [names, tag("div", chart, class_="charts single")]
