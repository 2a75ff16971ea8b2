"""Convergence and cost, from the files that their commands leave beside the runs."""

from __future__ import annotations

from typing import Any

from metamirror.report.charts import Series, legend, line_chart
from metamirror.report.collect import entries, mapping, number
from metamirror.report.figures.convergence import LINEAR, TITLES
from metamirror.report.markup import Child, Markup, signed, table, tag
from metamirror.report.sections.results import protocol_in_words
from metamirror.report.styles import styles_of


def convergence_section(found: dict[str, Any]) -> list[Markup]:
    """The figure, and what it says of the paper's observations."""
    curves = entries(found.get("curves"))
    styles = styles_of(str(curve.get("method")) for curve in curves)
    labels = [str(curve.get("label")) for curve in curves]
    trained = {number(curve.get("trained_steps")) for curve in curves}
    marks = sorted(k for k in trained if k is not None)
    charts = []
    for measure, title in TITLES.items():
        series = []
        for label, style, curve in zip(labels, styles, curves, strict=True):
            points, half = [], []
            for point in entries(curve.get("points")):
                k, mean = number(point.get("k")), number(point.get(measure))
                if k is not None and mean is not None:
                    points.append((k, mean))
                    half.append(number(point.get(f"{measure}_ci95")) or 0.0)
            if points:
                series.append(Series(label, style, points, half))
        if series:
            label = "inner step k (dotted: the K of training)"
            log = measure not in LINEAR
            charts.append(line_chart(series, title=title, x_label=label, log=log, marks=marks))
    missing = found.get("missing")
    late = ", ".join(map(str, missing)) if isinstance(missing, list) else ""
    return [
        tag("p", protocol_in_words(mapping(found.get("protocol"))), class_="protocol"),
        *([tag("p", f"Interrupted; missing: {late}.", class_="problem")] if late else []),
        legend(zip(labels, styles, strict=True)),
        tag("div", charts, class_="charts"),
        *_observations(found, curves),
    ]


def _observations(found: dict[str, Any], curves: list[dict[str, Any]]) -> list[Markup]:
    reference = found.get("reference")
    if reference is None:
        return [tag("p", "No run of MAML is among them to compare with.", class_="note")]
    rows: list[list[Child]] = []
    for curve in curves:
        start, norm, target = (
            mapping(curve.get(key))
            for key in ("initial_loss", "initial_grad_norm", "reference_loss")
        )
        gap, low, high = (number(start.get(key)) for key in ("difference", "low", "high"))
        ratio, reached = number(norm.get("ratio")), number(target.get("reached_at"))
        own = curve.get("label") == reference
        cells = (
            "" if own or gap is None else signed(gap, 3),
            "" if own or low is None or high is None else f"{signed(low, 3)} to {signed(high, 3)}",
            str(start.get("verdict", "")),
            "" if own or ratio is None else f"{ratio:.2f}",
            "" if own else "yes" if norm.get("comparable") is True else "no",
            "not within the steps shown" if reached is None else f"{reached:g}",
        )
        classes = ("number", "number", None, "number", None, "number")
        texts = [tag("td", c, class_=kind) for c, kind in zip(cells, classes, strict=True)]
        rows.append([str(curve.get("label")), *texts])
    first = mapping(curves[0].get("reference_loss")) if curves else {}
    ends = [number(v) for v in found["comparable"]] if _is_pair(found.get("comparable")) else []
    rule = f", from {ends[0]:g} to {ends[1]:g} times" if len(ends) == 2 and None not in ends else ""
    head = (
        "curve",
        f"loss at k = 0 − {reference}'s",
        "95 % interval",
        "start",
        "gradient norm at k = 0 / MAML's",
        f"comparable{rule}",
        f"steps to {reference}'s loss at k = {first.get('k', 'K')}",
    )
    note = (
        "The paper observes at k = 0 a lower support loss than MAML's and comparable gradient "
        "norms; differences are paired over tasks."
    )
    return [tag("p", note, class_="note"), table(head, rows)]


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def cost_section(found: dict[str, Any]) -> list[Markup]:
    """Time and memory of one meta-iteration."""
    rows = entries(found.get("rows"))
    longest = max((number(row.get("relative_to_maml")) or 0 for row in rows), default=0) or 1
    lines: list[list[Child]] = []
    styles = styles_of(str(row.get("method")) for row in rows)
    for row, style in zip(rows, styles, strict=True):
        time, relative, memory, extra = (
            number(row.get(key))
            for key in ("ms_per_iteration", "relative_to_maml", "peak_mb", "extra_parameters")
        )
        width = f"width: {100 * max(relative or 0, 0) / longest:.0f}%"
        bar = tag("span", class_=f"bar m{style.index}", style=width)
        lines.append(
            [
                str(row.get("method")),
                tag("td", "" if time is None else f"{time:,.1f}", class_="number"),
                tag("td", "" if relative is None else f"{relative:.2f}", class_="number"),
                tag("td", bar, class_="bars"),
                tag("td", "" if memory is None else f"{memory:,.0f}", class_="number"),
                tag("td", "" if extra is None else f"{extra:,.0f}", class_="number"),
            ]
        )
    about = {key: value for key, value in found.items() if key != "rows" and _short(value)}
    head = ("method", "ms / iteration", "/ MAML's", "", "peak MB", "extra parameters")
    return [tag("p", protocol_in_words(about), class_="protocol"), table(head, lines)]


def _short(value: object) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) <= 80
