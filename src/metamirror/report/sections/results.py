"""What a comparison found: its table, the differences from MAML, the search for step sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metamirror.experiments.comparison.table import Row, Seed, plus_minus
from metamirror.report.charts import Chart, Dot, dot_chart
from metamirror.report.collect import MOST_WORDS, entries, mapping, number, text
from metamirror.report.styles import style_of
from metamirror.report.tables import ENDS, lay_out

WORDS = ("method", "title", "optimizer", "geometry", "published", "status", "reason", "note")
FIGURES = ("ci95", "extra_parameters", "relative_to_maml")
"""Fields of a row that are words, and that are numbers."""


def results(found: dict[str, Any]) -> dict[str, Any]:
    """Return the layout and the charts of table.json; a row that failed or is missing says so."""
    protocol, rows = mapping(found.get("protocol")), entries(found.get("rows"))
    line = text(protocol.get("line")) or protocol_in_words(protocol)
    measure = "mse" if any("mse" in row for row in rows) else "accuracy"
    sound = [_sound(row, measure) for row in rows]
    return {"layout": lay_out(line, sound), "charts": _differences(sound, measure)}


def _sound(found: dict[str, Any], measure: str) -> Row:
    """Return a row whose fields have their types, whatever the file has."""
    gap = mapping(found.get("difference_to_maml"))
    words: dict[str, Any] = {name: text(found.get(name))[:MOST_WORDS] for name in WORDS}
    figures: dict[str, Any] = {name: number(found.get(name)) for name in FIGURES}
    return Row(
        **words | {"title": words["title"] or words["method"]},
        **figures,
        kind="control" if found.get("kind") == "control" else "method",
        shots=int(number(found.get("shots")) or 0),
        measure=measure,
        value=number(found.get(measure)),
        seeds=tuple(
            Seed(seed.get("seed"), number(seed.get(measure)), None, None)
            for seed in entries(found.get("seeds"))
        ),
        difference_to_maml={end: number(gap.get(end)) for end in ENDS},
        bold=found.get("bold") is True,
    )


def _differences(rows: Sequence[Row], measure: str) -> list[Chart]:
    """Return a chart of the paired differences for each number of shots."""
    better = "MSE; left is better" if measure == "mse" else "percentage points; right is better"
    charts = []
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
    rows = entries(found.get("rows"))
    scores = [{_rates(s): s for s in entries(row.get("scores"))} for row in rows]
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
