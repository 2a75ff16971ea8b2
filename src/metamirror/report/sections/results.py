"""What a comparison found: its table, the differences from MAML, the search for step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metamirror.experiments.comparison.table import Row, plus_minus
from metamirror.report.charts import Chart, Dot, dot_chart
from metamirror.report.collect import MOST_WORDS, dict_or_empty, dicts_in, number, text
from metamirror.report.styles import style_of
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


def estimate_in_words(found: dict[str, Any]) -> str:
    """Return an accuracy or an error with its interval; empty if there is none."""
    for measure in ("accuracy", "mse"):
        if (value := number(found.get(measure))) is not None:
            return plus_minus(measure, value, number(found.get("ci95")))
    return ""


def protocol_in_words(protocol: dict[str, Any]) -> str:
    """Return everything that decides the numbers, in a line."""
    said = {k: v for k, v in protocol.items() if v is not None}
    return " · ".join(f"{key.replace('_', ' ')} {_value(v)}" for key, v in said.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if type(value) is int else str(value)
