"""Every run: how it stands, how it learned, how it was configured."""

from __future__ import annotations

from collections.abc import Sequence

from metamirror.report.charts import Series, legend, line_chart, thinned
from metamirror.report.collect import Run, alike, number, on_same_tasks
from metamirror.report.markup import Child, Markup, table, tag
from metamirror.report.styles import Style, styles_of

CURVES = {
    "loss": "meta-loss in training",
    "val_accuracy": "validation accuracy, %",
    "val_mse": "validation mean squared error",
}
MOST_CHANGED = 12
"""A run's settings are told in its heading, up to so many."""


def runs_section(runs: Sequence[Run]) -> list[Markup]:
    """A line for each run."""
    head = ["run", "method", "data", "shots", "seed", "state"]
    scores = {"best validation": _validation, "test ± 95 %": _test, "s / iteration": _seconds}
    # A column without any entry would only take room.
    scores = {title: score for title, score in scores.items() if any(map(score, runs))}
    rows: list[list[Child]] = []
    for run in runs:
        config = run.settings
        cells: list[Child] = [run.name, run.method, str(config.get("data", ""))]
        cells += [tag("td", config.get(key, ""), class_="number") for key in ("shots", "seed")]
        good = run.status == "finished" and not run.problems
        status = tag("span", run.status, class_="good" if good else "bad")
        cells.append(tag("td", status, [tag("small", p) for p in run.problems]))
        cells += [tag("td", score(run), class_="number") for score in scores.values()]
        rows.append(cells)
    damaged = sum(run.config is None for run in runs)
    words = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    words += f", of which {damaged} cannot be read" if damaged else ""
    return [tag("p", f"{words}.", class_="note"), table([*head, *scores], rows)]


def _validation(run: Run) -> str:
    accuracies, errors = ([y for _, y in run.curve(f"val_{name}")] for name in ("accuracy", "mse"))
    if accuracies:
        return f"{max(accuracies):.2f} %"
    return f"{min(errors):.4f}" if errors else ""


def _test(run: Run) -> str:
    if run.test is None:
        return ""
    accuracy, mse, half, tasks = (
        number(run.test.get(key)) for key in ("accuracy", "mse", "ci95", "tasks")
    )
    digits = 2 if accuracy is not None else 4
    value = accuracy if accuracy is not None else mse
    if value is None:
        return ""
    text = f"{value:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")
    return text if tasks is None else f"{text} ({tasks:,.0f} tasks)"


def _seconds(run: Run) -> str:
    return "" if run.seconds is None else f"{run.seconds:.3g}"


def curves_section(runs: Sequence[Run]) -> list[Markup]:
    """Training loss and validation against the iteration, for runs on the same tasks together."""
    parts: list[Markup] = []
    for title, group in on_same_tasks([run for run in runs if run.metrics]).items():
        curves = alike(group)
        styles = styles_of(some[0].method for _, some in curves)
        charts = []
        for name, heading in CURVES.items():
            series = [
                line
                for (label, some), style in zip(curves, styles, strict=True)
                for line in _lines(label, [run for run in some if run.curve(name)], name, style)
            ]
            if series:
                log = name == "val_mse"
                charts.append(line_chart(series, title=heading, x_label="outer iteration", log=log))
        if charts:
            names = legend(zip((label for label, _ in curves), styles, strict=True))
            parts += [tag("h3", title), names, tag("div", charts, class_="charts")]
    return parts


def _lines(label: str, runs: Sequence[Run], name: str, style: Style) -> list[Series]:
    """The mean over runs of several seeds, and each of them faintly behind it."""
    if not runs:
        return []
    # Runs that stopped early would end the mean where they ended.
    furthest = max(run.step for run in runs)
    curves = [dict(run.curve(name)) for run in runs if run.step == furthest]
    shared = [step for step in curves[0] if all(step in curve for curve in curves)]
    mean = [(step, sum(c[step] for c in curves) / len(curves)) for step in shared]
    if len(runs) == 1:
        return [Series(f"{label}: {runs[0].name}", style, thinned(mean))]
    return [
        Series(f"{label}: mean of {len(curves)} runs", style, thinned(mean)),
        *(Series(run.name, style, thinned(run.curve(name)), faint=True) for run in runs),
    ]


def configurations_section(runs: Sequence[Run]) -> list[Markup]:
    """What all runs share, once; then every run's whole configuration, folded."""
    known = [run.settings for run in runs if run.config is not None]
    differ = [key for key in (known[0] if known else {}) if len({str(s[key]) for s in known}) > 1]
    note = "Folded: open one to see all of its settings. " + (
        f"They differ in: {', '.join(differ)}." if differ else "They do not differ in any."
    )
    parts = [tag("p", note, class_="note")] if known else []
    for run in runs:
        told = [f"{key} {run.settings[key]}" for key in differ[:MOST_CHANGED] if run.settings]
        summary = tag("summary", run.name, tag("small", ", ".join(told)))
        if run.config is None:
            inside = tag("p", "The configuration cannot be read: ", "; ".join(run.problems))
        else:
            rows = [(key, _written(value)) for key, value in run.settings.items()]
            inside = tag("div", _pairs("config.json", rows), class_="pairs")
        versions = [(key, _written(value)) for key, value in run.versions.items()]
        more = _pairs("versions.json", versions) if versions else None
        parts.append(tag("details", summary, inside, more))
    return parts


def _pairs(title: str, rows: list[tuple[str, str]]) -> Markup:
    inside = [tag("div", tag("dt", key), tag("dd", value)) for key, value in rows]
    return tag("section", tag("h4", title), tag("dl", inside))


def _written(value: object) -> str:
    return "–" if value is None else str(value)
