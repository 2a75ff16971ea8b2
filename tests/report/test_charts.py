"""Charts in a page."""

from __future__ import annotations

import math
import re

import pytest

from metamirror.report.charts import Dot, Series, dot_chart, line_chart, swatch, thinned
from metamirror.report.figures.convergence import draw
from metamirror.report.styles import Style

STYLE = Style(0)
HARD = {
    "nothing": [],
    "not finite": [math.nan, math.inf, 1.0],
    "too large": [1e308, -1e308],
    "too small": [1e-320, 1.0],
    "all equal": [5.0, 5.0],
    "equal but for rounding": [0.009999999999999997, 0.009999999999999998, 0.009999999999999997],
    "negative": [-1.0, 0.0],
    "far apart": [1e-30, 1e30],
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", HARD.values(), ids=HARD)
def test_any_values_can_be_drawn(values: list[float], log: bool):
    points = [(float(k), value) for k, value in enumerate(values)]
    line_chart([Series("a", STYLE, points, values)], title="t", x_label="x", log=log)
    rows = [("a", [Dot("a", STYLE, value, value, math.inf) for value in values])]
    dot_chart(rows, title="t", x_label="x", log=log, mark=1.0)
    rows = [("a", [Dot("a", STYLE, value)]) for value in values] or [("a", [])]
    dot_chart(rows, title="t", x_label="x", log=log)


def test_a_line_is_drawn_where_its_values_are():
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 1.0)]
    chart = line_chart([Series("<x>", STYLE, points)], title="t", x_label="x")
    drawn = re.search(r'<title>&lt;x&gt;</title> <path d="M ([^"]+)"', chart.svg)
    assert drawn is not None
    (x0, y0), (x1, y1), (x3, y3) = (map(float, p.split()) for p in drawn[1].split("L"))
    assert x0 < x1 < x3
    assert y1 < y0 == y3  # up is a smaller y
    assert (x3 - x0) == pytest.approx(3 * (x1 - x0), abs=0.3)


def test_a_chart_follows_the_page_and_needs_nothing_from_elsewhere():
    svg = dot_chart([("a $b$ <i>", [Dot("a", STYLE, 1.0)])], title="t", x_label="x").svg
    assert "a $b$ &lt;i&gt;" in svg
    assert STYLE.css in svg
    assert "#000000" not in svg
    for needless in ("http", "<style", "font-family", "metadata", "xlink"):
        assert needless not in svg + swatch(STYLE)


def test_thinning_keeps_the_mean_and_the_last_step():
    points = [(float(i), float(i % 7)) for i in range(700)]
    few = thinned(points)
    assert len(few) <= 120
    assert few[-1][0] == 699
    assert sum(y for _, y in few) / len(few) == pytest.approx(3.0, abs=0.1)
    assert thinned([]) == []


def test_curves_that_are_nowhere_finite_are_still_named_in_the_figure():
    point = dict.fromkeys(("k", "support_loss", "grad_norm", "accuracy"), 0.0)
    points = [point | dict.fromkeys(("support_loss", "grad_norm", "accuracy"), math.nan)]
    curve = {"label": "a", "method": "maml", "trained_steps": 1, "points": points}
    names = ("data", "ways", "shots", "queries", "norm", "tasks", "split", "steps")
    found = {"curves": [curve], "measure": "accuracy", "protocol": dict.fromkeys(names, 1)}
    (legend,) = draw(found).legends
    assert [text.get_text() for text in legend.get_texts()] == ["a"]
