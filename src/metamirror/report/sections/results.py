"""The table of a comparison: methods, controls, and the paired differences to MAML."""

from __future__ import annotations

from typing import Any

from metamirror.report.charts import Dot, dot_chart
from metamirror.report.collect import MOST_WORDS, entries, mapping, number
from metamirror.report.markup import Child, Markup, signed, tag
from metamirror.report.markup import table as html_table
from metamirror.report.styles import style_of
from metamirror.report.tables import OF_THE_PAPER

Row = dict[str, Any]


def results_section(found: dict[str, Any]) -> list[Markup]:
    """From table.json; a row that has failed or is missing says so."""
    rows, protocol = entries(found.get("rows")), mapping(found.get("protocol"))
    measure = "mse" if any("mse" in row for row in rows) else "accuracy"
    shots = sorted({number(row.get("shots")) or 0 for row in rows})
    controls = [row for row in rows if row.get("kind") == "control"]
    methods = [row for row in rows if row.get("kind") != "control"]
    unit = "mean squared error" if measure == "mse" else "accuracy in %"
    parts = [
        tag("p", str(protocol.get("line") or protocol_in_words(protocol)), class_="protocol"),
        tag(
            "p",
            f"{unit[0].upper()}{unit[1:]} ± 95 % interval on test tasks; in bold the best and all "
            f"within its interval.",
            class_="note",
        ),
        _table(methods, shots, measure),
    ]
    if controls:
        parts += [
            tag("h3", "Controls"),
            tag("p", "What the geometry has to be better than.", class_="note"),
            _table(controls, shots, measure),
        ]
    if any(row.get("published") for row in rows):
        parts.append(tag("p", OF_THE_PAPER, class_="note"))
    return parts + _differences(rows, shots, measure)


def protocol_in_words(protocol: dict[str, Any]) -> str:
    """Everything that decides the numbers, in a line."""
    said = {k: v for k, v in protocol.items() if v is not None}
    return " · ".join(f"{key.replace('_', ' ')} {_value(v)}" for key, v in said.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _by_method(rows: list[Row]) -> dict[str, dict[float, Row]]:
    found: dict[str, dict[float, Row]] = {}
    for row in rows:
        found.setdefault(str(row.get("method")), {})[number(row.get("shots")) or 0] = row
    return found


def _table(rows: list[Row], shots: list[float], measure: str) -> Markup:
    printed = any(row.get("published") for row in rows)
    head: list[Child] = ["method", "lower-level optimiser", "loss geometry"]
    for count in shots:
        head.append(f"{count:g}-shot")
        head += [f"{count:g}-shot in the paper"] if printed else []
    of = [f"{count:g}-shot " if len(shots) > 1 else "" for count in shots]
    head += ["seeds", "extra parameters", *(f"{words}time / MAML's" for words in of)]
    lines = []
    for method, by_shots in _by_method(rows).items():
        first = next(iter(by_shots.values()))
        name = str(first.get("title") or method)
        kind = [_text(first.get("optimizer")), _text(first.get("geometry"))]
        cells: list[Child] = [
            [
                name,
                tag("small", method) if name != method else None,
                tag("small", ", ".join(kind), class_="narrow") if any(kind) else None,
                [tag("small", _text(first["note"])[:MOST_WORDS])] if first.get("note") else None,
            ],
            *(tag("td", word, class_="broad") for word in kind),
        ]
        for count in shots:
            row = by_shots.get(count, {})
            cells.append(_figure(row, measure))
            cells += [tag("td", _text(row.get("published")), class_="number")] if printed else []
        # What was not trained has figures, but no seed.
        seeds = max(
            sum(seed.get("seed") is not None for seed in entries(row.get("seeds")))
            for row in by_shots.values()
        )
        extra = number(first.get("extra_parameters"))
        times = [number(by_shots.get(count, {}).get("relative_to_maml")) for count in shots]
        cells += [
            tag("td", seeds or "", class_="number"),
            tag("td", "" if extra is None else f"{extra:,.0f}", class_="number"),
            *(tag("td", "" if t is None else f"{t:.2f}", class_="number") for t in times),
        ]
        lines.append(cells)
    return html_table(head, lines)


def _figure(row: Row, measure: str) -> Markup:
    """A cell: the mean with its interval, or why there is none."""
    value, half = number(row.get(measure)), number(row.get("ci95"))
    wrong: list[Child] = []
    if row and row.get("status") != "done":
        # Even a row with figures may have lost a seed.
        reason = _text(row.get("reason"))[:MOST_WORDS]
        wrong = [tag("span", _text(row.get("status")), class_="bad"), tag("small", reason)]
    if value is None:
        return tag("td", wrong)
    digits = 4 if measure == "mse" else 2
    text = f"{value:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")
    shown = tag("strong", text) if row.get("bold") is True else text
    seeds = [
        f"seed {_text(seed.get('seed'))}: {score:.{digits}f}"
        for seed in entries(row.get("seeds"))
        if (score := number(seed.get(measure))) is not None and seed.get("seed") is not None
    ]
    return tag(
        "td", shown, tag("div", wrong) if wrong else None, class_="number", title="; ".join(seeds)
    )


def _differences(rows: list[Row], shots: list[float], measure: str) -> list[Markup]:
    """Paired differences, as a table and as a picture."""
    digits = 4 if measure == "mse" else 2
    unit = "MSE" if measure == "mse" else "percentage points"
    lines, charts = [], []
    for count in shots:
        picture = []
        for row in rows:
            if number(row.get("shots")) != count and len(shots) > 1:
                continue
            gap = mapping(row.get("difference_to_maml"))
            mean, low, high = (number(gap.get(key)) for key in ("mean", "low", "high"))
            if mean is None or low is None or high is None:
                continue
            method, name = str(row.get("method")), str(row.get("title") or row.get("method"))
            sure = "" if low <= 0 <= high else "yes"
            between = f"{signed(low, digits)} to {signed(high, digits)}"
            cells = [
                tag("td", f, class_="number")
                for f in (f"{count:g}", signed(mean, digits), between, sure)
            ]
            lines.append([name, *cells])
            picture.append((name, [Dot(name, style_of(method), mean, low, high)]))
        if picture:
            title = f"{count:g}-shot: difference to MAML, paired 95 % interval"
            better = "left" if measure == "mse" else "right"
            label = f"{unit}; {better} is better"
            charts.append(dot_chart(picture, title=title, x_label=label, mark=0.0))
    if not lines:
        return []
    head = ("method", "shots", f"difference, {unit}", "95 % interval", "zero excluded")
    return [
        tag("h3", "Differences to MAML"),
        tag("p", "On the same test tasks, task by task.", class_="note"),
        tag("div", charts, class_="charts"),
        tag("details", tag("summary", "The same as a table"), html_table(head, lines)),
    ]


def _text(value: object) -> str:
    return "" if value is None else str(value)
