"""Convergence and cost, from the files that their commands leave beside the runs."""

from __future__ import annotations

from typing import Any

from metamirror.report.charts import Series, line_chart
from metamirror.report.collect import entries, mapping, number, text
from metamirror.report.figures.convergence import LINEAR, TITLES, X_LABEL
from metamirror.report.sections.results import protocol_in_words
from metamirror.report.styles import styles_of
from metamirror.report.tables import Cell, Column, Table


def convergence(found: dict[str, Any]) -> dict[str, Any]:
    """Return the curves of convergence.json, and a table of the paper's observations."""
    curves = entries(found.get("curves"))
    labels = [str(curve.get("label")) for curve in curves]
    legend = list(zip(labels, styles_of(str(c.get("method")) for c in curves), strict=True))
    steps = {number(curve.get("trained_steps")) for curve in curves}
    trained = sorted(k for k in steps if k is not None)
    charts = []
    for measure, title in TITLES.items():
        series = []
        for (label, style), curve in zip(legend, curves, strict=True):
            points = [
                (k, mean, number(point.get(f"{measure}_ci95")) or 0.0)
                for point in entries(curve.get("points"))
                if (k := number(point.get("k"))) is not None
                and (mean := number(point.get(measure))) is not None
            ]
            if points:
                halves = [half for _, _, half in points]
                series.append(Series(label, style, [(k, mean) for k, mean, _ in points], halves))
        if series:
            log = measure not in LINEAR
            charts.append(line_chart(series, title=title, x_label=X_LABEL, log=log, marks=trained))
    missing = found.get("missing")
    return {
        "protocol": protocol_in_words(mapping(found.get("protocol"))),
        "missing": missing if isinstance(missing, list) else [],
        "legend": legend,
        "charts": charts,
        "table": None if found.get("reference") is None else _observations(found, curves),
    }


def _observations(found: dict[str, Any], curves: list[dict[str, Any]]) -> Table:
    reference, rows = found["reference"], []
    for curve in curves:
        start, norm, target = (
            mapping(curve.get(key))
            for key in ("initial_loss", "initial_grad_norm", "reference_loss")
        )
        ends = [figure(start.get(key), "+.3f") for key in ("low", "high")]
        against = (
            figure(start.get("difference"), "+.3f"),
            " to ".join(ends) if all(ends) else "",
            figure(norm.get("ratio"), ".2f"),
            "yes" if norm.get("comparable") is True else "no",
        )
        own = curve.get("label") == reference
        gap, interval, ratio, comparable = ("" if own else words for words in against)
        reached = figure(target.get("reached_at"), "g") or "not within the steps shown"
        verdict = text(start.get("verdict"))
        cells = (str(curve.get("label")), gap, interval, verdict, ratio, comparable, reached)
        rows.append([Cell(words) for words in cells])
    first = mapping(curves[0].get("reference_loss")) if curves else {}
    limits = found.get("comparable")
    words = [figure(limit, "g") for limit in limits] if isinstance(limits, list) else []
    rule = f", from {words[0]} to {words[1]} times" if len(words) == 2 and all(words) else ""
    columns = [
        Column("curve"),
        Column(f"loss at k = 0 − {reference}'s", "number"),
        Column("95 % interval", "number"),
        Column("start"),
        Column("gradient norm at k = 0 / MAML's", "number"),
        Column(f"comparable{rule}"),
        Column(f"steps to {reference}'s loss at k = {first.get('k', 'K')}", "number"),
    ]
    return Table(columns, rows)


def cost(found: dict[str, Any]) -> dict[str, Any]:
    """Return time and memory of one meta-iteration, from cost.json."""
    rows = entries(found.get("rows"))
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
