"""Charts by matplotlib: as files, and as SVG inside a page, which follows its colours."""

import io
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator
from numpy.typing import NDArray

from metamirror.console import printable
from metamirror.core.files import write_atomically
from metamirror.report.styles import Style

BLUE, GREY, RULE = "#2b6cb0", "#718096", "#dcdfe5"
PAGE_COLOURS = {
    "#000000": "var(--soft)",
    GREY: "var(--soft)",
    RULE: "var(--rule)",
    "#ffffff": "var(--ground)",
}
WIDTH, HEIGHT = 5.6, 3.4
MOST_POINTS, MOST_MARKERS, MOST_LETTERS = 120, 12, 34
LARGEST = 1e30
"""Beyond this there is nothing to see, and differences overflow."""
# What a page has no use for: facts on the file, a rule for all of its lines, fonts, names of parts.
NEEDLESS = re.compile(
    r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*|<!--.*?-->\s*"
    r'|font-family: [^;"]*;? ?| id="[A-Za-z.]+(?:2d)?_\d+"| transform="rotate\(-0 [^"]*"'
    r'|(?<=<svg) [^>]*?(?= viewBox)|(?<=") xmlns="[^"]*" version="1.1"|xlink:(?=href=)',
    re.DOTALL,
)


@dataclass(frozen=True)
class Series:
    """A line: points (x, y), and half an interval for each where there is one.

    A faint one stays behind the others and has no markers.
    """

    label: str
    style: Style
    points: Sequence[tuple[float, float]]
    half: Sequence[float] = ()
    faint: bool = False


@dataclass(frozen=True)
class Dot:
    """A mark in a row, with its interval where there is one."""

    label: str
    style: Style
    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Chart:
    """A chart for a page."""

    title: str
    svg: Markup


class Decades(LogFormatter):
    """Labels of a logarithmic axis in plain digits, at the ticks that matplotlib would label."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def draw_lines(
    axes: Axes, series: Sequence[Series], *, x_label: str, log: bool, marks: Iterable[float] = ()
) -> None:
    """Draw lines over whole numbers, with their intervals; `marks` are dotted verticals."""
    if log:
        _make_log(axes, "y")
    for i, one in enumerate(series):
        x, y = np.array(one.points, dtype=float).reshape(-1, 2).T
        shown = np.isfinite(x) & np.isfinite(y) & ((y > 0) | (not log))
        x, y = x[shown], _drawable(y[shown], log)
        behind = {"alpha": 0.45, "zorder": 1, "linewidth": 0.8, "marker": ""} if one.faint else {}
        every = max(1, math.ceil(len(x) / MOST_MARKERS))
        look = _look(one.style) | {"markevery": every} | behind
        axes.plot(x, y, gid=f"series-{i}", label=one.label, **look)
        if one.half:
            # A finite mean may have an interval that is not; a logarithm has no room below zero.
            half = np.nan_to_num(np.array(one.half, dtype=float)[shown], posinf=0.0, neginf=0.0)
            low = np.maximum(y - half, 0.05 * y) if log else y - half
            low, high = _drawable(low, log), _drawable(y + half, log)
            colour = one.style.colours[0]
            axes.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
    for mark in marks:
        axes.axvline(mark, color=GREY, linewidth=1, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(axes, x_label)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    log: bool = False,
    marks: Iterable[float] = (),
) -> Chart:
    """Return lines as a chart for a page."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    draw_lines(figure.subplots(), series, x_label=x_label, log=log, marks=marks)
    return Chart(title, _inline(figure, [one.style for one in series], [s.label for s in series]))


def dot_chart(
    rows: Sequence[tuple[str, Sequence[Dot]]],
    *,
    title: str,
    x_label: str,
    log: bool = False,
    mark: float | None = None,
) -> Chart:
    """Return rows of marks along one axis as a chart for a page; `mark` is a dotted vertical."""
    most = max((len(dots) for _, dots in rows), default=1)
    tall = max(0.3, 0.11 * most + 0.08)
    figure = Figure(figsize=(WIDTH, 0.7 + tall * len(rows)), layout="constrained")
    axes = figure.subplots()
    if log:
        _make_log(axes, "x")
    dots = [dot for _, own in rows for dot in own]
    for i, (_, own) in enumerate(rows):
        if i:
            axes.axhline(i - 0.5, color=RULE, linewidth=0.7)
        for j, dot in enumerate(own):
            y = i + 0.11 / tall * (j - (len(own) - 1) / 2)
            ends = _drawable(np.array([dot.low, dot.value, dot.high]), log)
            gid = f"series-{dots.index(dot)}"
            # Without an interval the ends are not numbers, and the marker stands alone.
            axes.plot(ends, [y] * 3, gid=gid, **_look(dot.style) | {"markevery": [1]})
    if mark is not None:
        axes.axvline(mark, color=GREY, linewidth=1, linestyle=":")
    names = [printable(name) for name, _ in rows]
    short = [n if len(n) <= MOST_LETTERS else f"{n[: MOST_LETTERS - 1]}…" for n in names]
    axes.set_yticks(range(len(rows)), short)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _finish(axes, x_label)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    labels = [f"{dot.label}: {dot.value:.4g}" for dot in dots]
    return Chart(title, _inline(figure, [dot.style for dot in dots], labels))


@cache
def swatch(style: Style) -> Markup:
    """Return a style's line and marker, for a legend in a page."""
    figure = Figure(figsize=(26 / 72, 12 / 72))
    figure.add_artist(Line2D([0, 0.5, 1], [0.5] * 3, markevery=[1], **_look(style)))
    return _inline(figure, [style], [])


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most MOST_POINTS points: means of as many neighbours as that takes."""
    many = math.ceil(len(points) / MOST_POINTS)
    parts = [points[i : i + many] for i in range(0, len(points), many)] if points else []
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def save(figure: Figure, path: Path, dpi: int = 160) -> None:
    """Write a figure as its file's name says; equal figures become equal bytes."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _rendered(figure, path.suffix.lstrip(".") or "png", dpi))


def _rendered(figure: Figure, kind: str, dpi: int = 72) -> bytes:
    buffer = io.BytesIO()
    facts = {"Date": None} if kind == "svg" else {}
    with (
        warnings.catch_warnings(),
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "metamirror"}),
    ):
        # A letter that no font has becomes a box; an axis of one value is widened.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=facts)
    return buffer.getvalue()


def _inline(figure: Figure, styles: Iterable[Style], labels: Sequence[str]) -> Markup:
    """Return a figure as SVG for a page: the page's colours and fonts, and labels to hover over."""
    for background in (figure.patch, *(axes.patch for axes in figure.axes)):
        background.set_visible(False)
    colours = PAGE_COLOURS | {style.colours[0]: style.css for style in styles}
    text = _rendered(figure, "svg").decode()
    text = re.sub(r"\s*\n\s*", " ", NEEDLESS.sub("", text[text.index("<svg") :]))
    for colour, of_page in colours.items():
        text = re.sub(f"(fill|stroke): {colour}", rf"\1: {of_page}", text)
    for i, label in enumerate(labels):
        text = text.replace(f'<g id="series-{i}">', f"<g><title>{escape(label)}</title>")
    return Markup(text)


def _look(style: Style) -> dict[str, Any]:
    """Return how matplotlib draws a line with its markers."""
    return {
        "color": style.colours[0],
        "marker": style.marker,
        "linestyle": (0, style.dashes) if style.dashes else "-",
        "linewidth": 1.5,
        "markersize": 6,
        "markeredgecolor": "#ffffff",
        "markeredgewidth": 0.4,
    }


def _make_log(axes: Axes, axis: str) -> None:
    axes.set(**{f"{axis}scale": "log"})
    ticks = getattr(axes, f"{axis}axis")
    ticks.set_major_formatter(Decades())
    ticks.set_minor_formatter(Decades(minor_thresholds=(1, 0.4)))


def _finish(axes: Axes, x_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.tick_params(which="both", labelsize=9.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)


def _drawable(values: NDArray[np.float64], log: bool) -> NDArray[np.float64]:
    # In single precision: matplotlib finds no room for an axis between values that differ only by
    # rounding, such as the step sizes of MAML.
    values = values.clip(1 / LARGEST if log else -LARGEST, LARGEST)
    return values.astype(np.float32).astype(np.float64)
