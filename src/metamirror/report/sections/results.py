"""What a comparison found: its table, the differences from MAML, the search for step sizes."""

from __future__ import annotations

from typing import Any

from metamirror.experiments.comparison.table import plus_minus
from metamirror.report.charts import Chart, Dot, dot_chart
from metamirror.report.collect import MOST_WORDS, entries, mapping, number, text
from metamirror.report.styles import style_of
from metamirror.report.tables import Cell, Column, Table, lay_out, measure_of

ENDS = ("mean", "low", "high")


def results(found: dict[str, Any]) -> dict[str, Any]:
    """Return the layout and the charts of table.json; a row that failed or is missing says so."""
    protocol, rows = mapping(found.get("protocol")), entries(found.get("rows"))
    measure = measure_of({"rows": rows})
    line, sound = text(protocol.get("line")), [_sound(row, measure) for row in rows]
    table = {"protocol": {"line": line or protocol_in_words(protocol)}, "rows": sound}
    return {"layout": lay_out(table), "charts": _differences(sound, measure)}


def _sound(row: dict[str, Any], measure: str) -> dict[str, Any]:
    """Return a row with all of its fields, of the types that they should have."""
    words = ("title", "optimizer", "geometry", "kind", "published", "status", "reason", "note")
    numbers = (measure, "ci95", "extra_parameters", "relative_to_maml")
    gap = {end: number(mapping(row.get("difference_to_maml")).get(end)) for end in ENDS}
    seeds = [
        {"seed": seed.get("seed"), measure: score}
        for seed in entries(row.get("seeds"))
        if (score := number(seed.get(measure))) is not None
    ]
    sound: dict[str, Any] = {name: text(row.get(name))[:MOST_WORDS] for name in words}
    sound |= {name: number(row.get(name)) for name in numbers}
    sound |= {"seeds": seeds, "bold": row.get("bold") is True, "method": str(row.get("method"))}
    sound |= {"shots": int(number(row.get("shots")) or 0), "difference_to_maml": gap}
    return sound | {"title": sound["title"] or sound["method"]}


def _differences(rows: list[dict[str, Any]], measure: str) -> list[Chart]:
    """Return a chart of the paired differences for each number of shots."""
    better = "MSE; left is better" if measure == "mse" else "percentage points; right is better"
    charts = []
    for count in sorted({row["shots"] for row in rows}):
        dots = [
            (row["title"], [Dot(row["title"], style_of(row["method"]), *gap.values())])
            for row in rows
            if row["shots"] == count and None not in (gap := row["difference_to_maml"]).values()
        ]
        if dots:
            title = f"{count}-shot: difference from MAML, paired 95 % interval"
            charts.append(dot_chart(dots, title=title, x_label=better, mark=0.0))
    return charts


def search(found: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of search.json: a line for each row and shots, a column for each choice."""
    rows = entries(found.get("rows"))
    scores = [{_rates(s): s for s in entries(row.get("scores"))} for row in rows]
    rates = list(dict.fromkeys(rate for own in scores for rate in own))
    lines = []
    for row, own in zip(rows, scores, strict=True):
        name = Cell(str(row.get("label")), notes=(f"{row.get('shots')}-shot",))
        cells = [
            _score(own[rate], rate == _rates(row)) if rate in own else Cell("") for rate in rates
        ]
        lines.append([name, *cells])
    columns = [Column("method"), *(Column(_title(*rate), "number") for rate in rates)]
    tasks, iterations = (f"{number(found.get(k)) or 0:,.0f}" for k in ("tasks", "iterations"))
    return {"table": Table(columns, lines), "tasks": tasks, "iterations": iterations}


def _rates(found: dict[str, Any]) -> tuple[float | None, float | None]:
    return number(found.get("lr")), number(found.get("geometry_lr"))


def _title(lr: float | None, geometry_lr: float | None) -> str:
    inner = "?" if lr is None else f"α = {lr:g}"
    return inner if geometry_lr is None else f"{inner}, geometry {geometry_lr:g}"


def _score(score: dict[str, Any], chosen: bool) -> Cell:
    value = estimate_in_words(score)
    if not value:
        return Cell("failed", notes=(text(score.get("reason"))[:MOST_WORDS],), kind="bad")
    return Cell(value, bold=chosen)


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
