"""The sections of the report page: files beside the runs, and the runs themselves."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from metamirror.console import Progress
from metamirror.core.metrics import metric_in
from metamirror.experiments.comparison.table import Row, plus_minus
from metamirror.experiments.inspection import inspect_run
from metamirror.report.charts import Chart, Dot, Series, dot_chart, line_chart, thinned
from metamirror.report.collect import (
    MOST_WORDS,
    Run,
    dict_or_empty,
    dicts_in,
    groups_of,
    in_short,
    number,
)
from metamirror.report.figures.convergence import X_LABEL, measures_of, series_of, title_of
from metamirror.report.figures.geometry import describe_geometry, verdict_in_words
from metamirror.report.styles import Style, style_of, styles_of
from metamirror.report.tables import Cell, Table, lay_out, read_rows

SCORES = ("best validation", "test ± 95 %", "s / iteration")
TASKS, POINTS = 1, 2
"""How much a page inspects of each run; `metamirror inspect` examines one in more detail."""
Inspected = tuple[str, Run, dict[str, Any]]
"""A label, a run, and what `inspect_run` found."""
MOST_CHANGED = 12
"""How many of a run's settings its heading shows at most."""


def results(found: dict[str, Any]) -> dict[str, Any]:
    """Return the layout and the charts of table.json; a row that failed or is missing says so."""
    protocol, rows = dict_or_empty(found.get("protocol")), read_rows(found, MOST_WORDS)
    line = str(protocol.get("line") or protocol_in_words(protocol))
    return {"layout": lay_out(line, rows), "charts": _differences(rows)}


def _differences(rows: Sequence[Row]) -> list[Chart]:
    """Return a chart of the paired differences for each number of shots."""
    charts = []
    if not rows:
        return []
    measure = rows[0].measure
    unit = "percentage points" if measure.percent else measure.heading
    better = f"{unit}; {'right' if measure.higher else 'left'} is better"
    for count in dict.fromkeys(row.shots for row in rows):
        dots = [
            (row.title, [Dot(row.title, style_of(row.method), *gap.values())])
            for row in rows
            if row.shots == count and None not in (gap := row.difference_to_maml or {}).values()
        ]
        if dots:
            title = f"{count}-shot: difference from MAML, paired 95 % interval"
            charts.append(dot_chart(dots, title=title, x_label=better, mark=0.0))
    return charts


def search(found: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of search.json, by row and by the step sizes that were tried."""
    rows = dicts_in(found.get("rows"))
    scores = [{_rates(s): s for s in dicts_in(row.get("scores"))} for row in rows]
    rates = list(dict.fromkeys(rate for own in scores for rate in own))
    lines = [(row, _rates(row), own) for row, own in zip(rows, scores, strict=True)]
    return {"rates": rates, "rows": lines, "search": found}


def _rates(found: dict[str, Any]) -> tuple[float | None, float | None]:
    return number(found.get("lr")), number(found.get("geometry_lr"))


def convergence(found: dict[str, Any]) -> dict[str, Any]:
    """Return the curves of convergence.json, and a table of the paper's observations."""
    curves = dicts_in(found.get("curves"))
    steps = {number(curve.get("trained_steps")) for curve in curves}
    trained = sorted(k for k in steps if k is not None)
    lines = {measure: series_of(curves, measure) for measure in measures_of(found)}
    charts = []
    for name, series in lines.items():
        if any(one.points for one in series):
            title, log = title_of(found, name)
            charts.append(line_chart(series, title=title, x_label=X_LABEL, log=log, marks=trained))
    missing, limits = found.get("missing"), found.get("comparable")
    return {
        "protocol": protocol_in_words(dict_or_empty(found.get("protocol"))),
        "missing": missing if isinstance(missing, list) else [],
        "legend": [(one.label, one.style) for one in lines["support_loss"]],
        "charts": charts,
        "reference": found.get("reference"),
        "comparable": [figure(v, "g") for v in limits] if isinstance(limits, list) else [],
        "curves": curves,
    }


def cost(found: dict[str, Any]) -> dict[str, Any]:
    """Return time and memory of one meta-iteration, from cost.json."""
    rows = dicts_in(found.get("rows"))
    times = [max(number(row.get("relative_to_maml")) or 0, 0) for row in rows]
    widths = [round(100 * time / (max(times) or 1)) for time in times]
    styles = styles_of(str(row.get("method")) for row in rows)
    plain = {k: v for k, v in found.items() if isinstance(v, str | int | float)}
    about = protocol_in_words({k: v for k, v in plain.items() if len(str(v)) <= 80})
    return {"protocol": about, "rows": list(zip(rows, styles, widths, strict=True))}


def figure(value: object, spec: str) -> str:
    """Return a finite number in a format, with a true minus sign; anything else is left out."""
    known = number(value)
    return "" if known is None else format(known, spec).replace("-", "−")


def estimate_in_words(found: dict[str, Any]) -> str:
    """Return a figure with its interval; empty if there is none."""
    measure = metric_in(found)
    value = number(found.get(measure.name))
    return "" if value is None else plus_minus(measure, value, number(found.get("ci95")))


def protocol_in_words(protocol: dict[str, Any]) -> str:
    """Return everything that decides the numbers, in a line."""

    def words(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return f"{value:,}" if type(value) is int else str(value)

    said = {k.replace("_", " "): words(v) for k, v in protocol.items() if v is not None}
    return " · ".join(f"{key} {value}" for key, value in said.items())


def runs_table(runs: Sequence[Run]) -> dict[str, Any]:
    """Return a line for each run."""
    rows = []
    for run in runs:
        good = run.status == "finished" and not run.problems
        state = Cell(run.status, notes=tuple(run.problems), kind="good" if good else "bad")
        settings = [Cell(str(run.settings.get(key, ""))) for key in ("data", "shots", "seed")]
        rows.append([Cell(run.name), Cell(run.method), *settings, state, *map(Cell, _scores(run))])
    columns = {"run": "", "method": "", "data": "", "shots": "number", "seed": "number"}
    columns |= {"state": "", **dict.fromkeys(SCORES, "number")}
    # An empty column would only take room.
    shown = [i for i in range(len(columns)) if i < 6 or any(row[i].text for row in rows)]
    titles = [list(columns.items())[i] for i in shown]
    damaged = sum(run.config is None for run in runs)
    summary = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    summary += f", of which {damaged} cannot be read." if damaged else "."
    return {"summary": summary, "table": Table(dict(titles), [[r[i] for i in shown] for r in rows])}


def _scores(run: Run) -> tuple[str, str, str]:
    """Return the best validation, the test and the seconds of an iteration, where known."""
    measure = run.measure
    values = [y for _, y in run.curve(f"val_{measure.name}")]
    best = measure.shown(max(values, key=measure.worth)) if values else ""
    found = run.test or {}
    test, tasks = estimate_in_words(found), number(found.get("tasks"))
    test += f" ({tasks:,.0f} tasks)" if test and tasks is not None else ""
    return best, test, "" if run.seconds is None else f"{run.seconds:.3g}"


def curves(runs: Sequence[Run]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield training loss and validation against the iteration, for runs on the same tasks."""
    for title, group in groups_of([run for run in runs if run.metrics]).items():
        styles = styles_of(some[0].method for some in group.values())
        charts = []
        measures = {run.measure.name: run.measure for some in group.values() for run in some}
        curves = {"loss": ("meta-loss in training", False)} | {
            f"val_{name}": (f"validation {measure.heading}", not measure.higher)
            for name, measure in measures.items()
        }
        for name, (heading, log) in curves.items():
            series = [
                line
                for (label, some), style in zip(group.items(), styles, strict=True)
                for line in _lines(label, [run for run in some if run.curve(name)], name, style)
            ]
            if series:
                charts.append(line_chart(series, title=heading, x_label="outer iteration", log=log))
        if charts:
            yield title, {"legend": list(zip(group, styles, strict=True)), "charts": charts}


def _lines(label: str, runs: Sequence[Run], name: str, style: Style) -> list[Series]:
    """Return the mean over runs of several seeds, and each of them faintly behind it."""
    if not runs:
        return []
    # Runs that stopped early would end the mean where they ended.
    furthest = max(run.step for run in runs)
    found = [dict(run.curve(name)) for run in runs if run.step == furthest]
    shared = [step for step in found[0] if all(step in curve for curve in found)]
    mean = thinned([(step, sum(c[step] for c in found) / len(found)) for step in shared])
    if len(runs) == 1:
        return [Series(f"{label}: {runs[0].name}", style, mean)]
    return [
        Series(f"{label}: mean of {len(found)} runs", style, mean),
        *(Series(run.name, style, thinned(run.curve(name)), faint=True) for run in runs),
    ]


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
    shown = [_inspected(title, group) for title, group in groups.items()]
    return {"problems": problems, "groups": shown, "tasks": TASKS, "points": POINTS}


def _inspected(title: str, group: list[Inspected]) -> dict[str, Any]:
    styles = styles_of(run.method for _, run, _ in group)
    legend = [(label, style) for (label, _, _), style in zip(group, styles, strict=True)]
    sizes = [found["effective_step_sizes"] for _, _, found in group]
    rows: dict[str, list[Dot]] = {layer: [] for own in sizes for layer in own}
    for (label, style), own in zip(legend, sizes, strict=True):
        for layer, size in own.items():
            rows[layer] += [Dot(label, style, size)] if size > 0 else []
    rates = {found["lr"] for _, _, found in group}
    charts = []
    if rows:  # which methods without an inner loop have not
        chart = dot_chart(
            list(rows.items()),
            title="effective step size of each layer",
            x_label="|change of φ| / |gradient|" + (" (dotted: α)" if len(rates) == 1 else ""),
            log=True,
            mark=rates.pop() if len(rates) == 1 else None,
        )
        charts.append(chart)
    inspected = [
        (label, run, found, verdict_in_words(found), describe_geometry(found)[1:])
        for label, run, found in group
    ]
    return {"title": title, "inspected": inspected, "legend": legend, "charts": charts}


def configurations(runs: Sequence[Run]) -> dict[str, Any]:
    """Return every run with the settings in which it may differ from the others."""
    known = [run.settings for run in runs if run.config is not None]
    differ = [key for key in (known[0] if known else {}) if len({str(s[key]) for s in known}) > 1]
    changed = [
        [f"{key} {run.settings[key]}" for key in differ[:MOST_CHANGED] if run.settings]
        for run in runs
    ]
    return {"known": known, "differ": differ, "runs": list(zip(runs, changed, strict=True))}
