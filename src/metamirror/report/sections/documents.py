"""The files that commands leave beside the runs: a table, a search, convergence, cost."""

from collections.abc import Sequence
from typing import Any

from metamirror.experiments.comparison.table import Row, plus_minus
from metamirror.report.charts import Chart, Dot, dot_chart, line_chart
from metamirror.report.collect import MOST_WORDS, dict_or_empty, dicts_in, number, text
from metamirror.report.figures.convergence import LINEAR, TITLES, X_LABEL, series_of
from metamirror.report.styles import style_of, styles_of
from metamirror.report.tables import lay_out, read_rows


def results(found: dict[str, Any]) -> dict[str, Any]:
    """Return the layout and the charts of table.json; a row that failed or is missing says so."""
    protocol, rows = dict_or_empty(found.get("protocol")), read_rows(found, MOST_WORDS)
    line = text(protocol.get("line")) or protocol_in_words(protocol)
    return {"layout": lay_out(line, rows), "charts": _differences(rows)}


def _differences(rows: Sequence[Row]) -> list[Chart]:
    """Return a chart of the paired differences for each number of shots."""
    charts = []
    errors = any(row.measure == "mse" for row in rows)
    better = "MSE; left is better" if errors else "percentage points; right is better"
    for count in sorted({row.shots for row in rows}):
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
    lines = {measure: series_of(curves, measure) for measure in TITLES}
    charts = [
        line_chart(
            series, title=TITLES[name], x_label=X_LABEL, log=name not in LINEAR, marks=trained
        )
        for name, series in lines.items()
        if any(one.points for one in series)
    ]
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
    about = {k: v for k, v in found.items() if isinstance(v, str | int | float)}
    about = {key: value for key, value in about.items() if len(str(value)) <= 80}
    shown = list(zip(rows, styles, widths, strict=True))
    return {"protocol": protocol_in_words(about), "rows": shown}


def figure(value: object, spec: str) -> str:
    """Return a finite number in a format, with a true minus sign; anything else is left out."""
    known = number(value)
    return "" if known is None else format(known, spec).replace("-", "−")


def estimate_in_words(found: dict[str, Any]) -> str:
    """Return an accuracy or an error with its interval; empty if there is none."""
    for measure in ("accuracy", "mse"):
        if (value := number(found.get(measure))) is not None:
            return plus_minus(measure, value, number(found.get("ci95")))
    return ""


def protocol_in_words(protocol: dict[str, Any]) -> str:
    """Return everything that decides the numbers, in a line."""

    def words(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return f"{value:,}" if type(value) is int else str(value)

    said = {k.replace("_", " "): words(v) for k, v in protocol.items() if v is not None}
    return " · ".join(f"{key} {value}" for key, value in said.items())
