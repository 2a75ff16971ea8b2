"""Convergence and cost, from the files that their commands leave beside the runs."""

from __future__ import annotations

from typing import Any

from metamirror.report.charts import line_chart
from metamirror.report.collect import dict_or_empty, dicts_in, number
from metamirror.report.figures.convergence import LINEAR, TITLES, X_LABEL, series_of
from metamirror.report.sections.results import protocol_in_words
from metamirror.report.styles import styles_of


def convergence(found: dict[str, Any]) -> dict[str, Any]:
    """Return the curves of convergence.json, and a table of the paper's observations."""
    curves = dicts_in(found.get("curves"))
    labels = [str(curve.get("label")) for curve in curves]
    styles = styles_of(str(curve.get("method")) for curve in curves)
    steps = {number(curve.get("trained_steps")) for curve in curves}
    trained = sorted(k for k in steps if k is not None)
    charts = []
    for measure, title in TITLES.items():
        series, log = series_of(curves, measure), measure not in LINEAR
        if any(one.points for one in series):
            charts.append(line_chart(series, title=title, x_label=X_LABEL, log=log, marks=trained))
    missing, limits = found.get("missing"), found.get("comparable")
    return {
        "protocol": protocol_in_words(dict_or_empty(found.get("protocol"))),
        "missing": missing if isinstance(missing, list) else [],
        "legend": list(zip(labels, styles, strict=True)),
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
    about = {
        key: value
        for key, value in found.items()
        if isinstance(value, str | int | float) and len(str(value)) <= 80
    }
    shown = list(zip(rows, styles, widths, strict=True))
    return {"protocol": protocol_in_words(about), "rows": shown}


def figure(value: object, spec: str) -> str:
    """Return a finite number in a format, with a true minus sign; anything else is left out."""
    known = number(value)
    return "" if known is None else format(known, spec).replace("-", "−")
