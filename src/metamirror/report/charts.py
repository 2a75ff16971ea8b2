"""Small charts as SVG inside a page: they follow its colours, light or dark, and need no script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.markers import MarkerStyle

from metamirror.report.markup import Markup, tag
from metamirror.report.styles import MARKERS, PALETTE, Style

WIDTH, HEIGHT = 400, 264
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 28, 40
MOST_POINTS, MOST_MARKERS = 120, 12
MARKER_SIZE, MARKER_AREA = 8, 2.0


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
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linear or logarithmic; what lies outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)

    def ticks(self) -> list[float]:
        """Round values, about five."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            stride = max(1, (last - first) // 5)
            for factors in ((1,), (1, 3), (1, 2, 5)):
                values = [f * 10.0**e for e in range(first, last + 1, stride) for f in factors]
                inside = [v for v in values if self.low <= v <= self.high]
                if len(inside) >= 3:
                    return inside
        span = self.high - self.low
        unit = 10.0 ** math.floor(math.log10(span))
        step = next(f * unit for f in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5) if span / (f * unit) <= 5.5)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first + 1
        return [(first + i) * step for i in range(count)]


def scale_for(values: Iterable[float], start: float, end: float, log: bool = False) -> Scale:
    """A scale around the values, a little wider than they are."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    # Beyond these limits there is nothing to see, and differences overflow.
    least, most = 1e-30 if log else -1e30, 1e30
    low, high = (min(max(v, least), most) for v in (min(known, default=1), max(known, default=1)))
    if log:
        room = max((high / low) ** 0.05, 1.05)
        return Scale(low / room, high * room, start, end, log=True)
    largest = max(abs(low), abs(high))
    room = 0.05 * (high - low if high - low > 1e-9 * largest else max(largest, 1.0))
    return Scale(low - room, high + room, start, end)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    log: bool = False,
    marks: Sequence[float] = (),
) -> Markup:
    """Lines over whole numbers, with their intervals; `marks` are dotted verticals."""
    series = [_plottable(s, log) for s in series]
    x = scale_for([p[0] for s in series for p in s.points] + list(marks), LEFT, WIDTH - RIGHT)
    ends = [y for s in series for y in _band_ends(s)]
    y = scale_for(ends, HEIGHT - BOTTOM, TOP, log)
    ticks = [t for t in x.ticks() if t == round(t)]
    inside: list[Markup] = [*_y_axis(y), *_x_axis(x, ticks, x_label, HEIGHT)]
    inside += [_vertical(x(mark), HEIGHT, "mark") for mark in marks]
    for s in series:
        if s.half:
            pairs = list(zip(s.points, s.half, strict=True))
            around = [f"{x(a)},{y(b + h)}" for (a, b), h in pairs]
            around += [f"{x(a)},{y(max(b - h, y.low))}" for (a, b), h in reversed(pairs)]
            inside.append(tag("polygon", points=" ".join(around), class_=f"band m{s.style.index}"))
    for s in sorted(series, key=lambda s: not s.faint):
        drawn = [(x(a), y(b)) for a, b in s.points]
        line = tag(
            "polyline",
            points=" ".join(f"{a},{b}" for a, b in drawn),
            stroke_dasharray=" ".join(map(str, s.style.dashes)) or None,
        )
        every = max(1, math.ceil(len(drawn) / MOST_MARKERS))
        spots = [_marker(s.style, a, b) for a, b in drawn[::every] if not s.faint]
        kind = "line faint" if s.faint else "line"
        about = tag("title", s.label)
        inside.append(tag("g", about, line, spots, class_=f"{kind} m{s.style.index}"))
    return _figure(title, inside, HEIGHT)


def dot_chart(
    rows: Sequence[tuple[str, Sequence[Dot]]],
    *,
    title: str,
    x_label: str,
    log: bool = False,
    mark: float | None = None,
) -> Markup:
    """Rows of marks along one axis; `mark` is a dotted vertical."""
    most = max((len(dots) for _, dots in rows), default=1)
    tall = max(22, 8 * most + 6)
    bottom = TOP + tall * len(rows)
    left = min(180, 14 + 6.2 * max((len(name) for name, _ in rows), default=1))
    every = [v for _, dots in rows for d in dots for v in (d.value, d.low, d.high) if v is not None]
    x = scale_for(every + ([] if mark is None else [mark]), left, WIDTH - RIGHT, log)
    inside = _x_axis(x, x.ticks(), x_label, bottom + BOTTOM)
    if mark is not None:
        inside.append(_vertical(x(mark), bottom + BOTTOM, "mark"))
    for i, (name, dots) in enumerate(rows):
        middle = TOP + tall * (i + 0.5)
        short = name if len(name) <= 28 else f"{name[:27]}…"
        about = tag("title", name)
        inside.append(
            tag("text", about, short, class_="name", x=left - 8, y=middle + 4, text_anchor="end")
        )
        if i:
            y = middle - tall / 2
            inside.append(tag("line", x1=left, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        for j, dot in enumerate(dots):
            y = round(middle + 8 * (j - (len(dots) - 1) / 2), 1)
            parts = [tag("title", f"{dot.label}: {dot.value:.4g}")]
            if dot.low is not None and dot.high is not None:
                parts.append(tag("line", x1=x(dot.low), x2=x(dot.high), y1=y, y2=y))
            parts.append(_marker(dot.style, x(dot.value), y))
            inside.append(tag("g", parts, class_=f"line m{dot.style.index}"))
    return _figure(title, inside, bottom + BOTTOM)


def legend(entries: Iterable[tuple[str, Style]]) -> Markup:
    """Names beside their line and marker."""
    items = []
    for label, style in entries:
        line = tag(
            "line",
            x1=0,
            x2=26,
            y1=6,
            y2=6,
            stroke_dasharray=" ".join(map(str, style.dashes)) or None,
        )
        inside = tag("g", line, _marker(style, 13, 6), class_=f"line m{style.index}")
        swatch = tag("svg", inside, viewBox="0 0 26 12", width=26, height=12, aria_hidden="true")
        items.append(tag("li", swatch, label))
    return tag("ul", items, class_="legend")


def marker_symbols() -> Markup:
    """The shapes that charts refer to; once in a page."""
    symbols = []
    for i, marker in enumerate(MARKERS):
        style = MarkerStyle(marker)
        (polygon,) = style.get_path().transformed(style.get_transform()).to_polygons()
        outline = np.asarray(polygon)
        x, y = outline.T
        area = abs(x[:-1] @ y[1:] - x[1:] @ y[:-1]) / 2
        # All of one area, so that none looks more important than another.
        size = (MARKER_AREA / area) ** 0.5
        points = " ".join(f"{size * a:.2f},{-size * b:.2f}" for a, b in outline)
        shape = tag("polygon", points=points)
        symbols.append(tag("symbol", shape, id=f"k{i}", viewBox="-1 -1 2 2", overflow="visible"))
    return tag("svg", symbols, width=0, height=0, class_="symbols", aria_hidden="true")


def colour_rules() -> tuple[str, str]:
    """The custom properties of the palette, on light and on dark ground."""
    light, dark = (
        " ".join(f"--m{i}: {pair[ground]};" for i, pair in enumerate(PALETTE)) for ground in (0, 1)
    )
    return light, dark


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS points: means of as many neighbours as that takes."""
    many = math.ceil(len(points) / MOST_POINTS)
    parts = [points[i : i + many] for i in range(0, len(points), many)] if points else []
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def _plottable(series: Series, log: bool) -> Series:
    half = series.half or [0.0] * len(series.points)
    kept = [
        ((a, b), h if math.isfinite(h) else 0.0)
        for (a, b), h in zip(series.points, half, strict=True)
        if math.isfinite(a) and math.isfinite(b) and (b > 0 or not log)
    ]
    halves = [h for _, h in kept] if series.half else []
    return replace(series, points=[p for p, _ in kept], half=halves)


def _band_ends(series: Series) -> list[float]:
    half = series.half or [0.0] * len(series.points)
    return [v for (_, b), h in zip(series.points, half, strict=True) for v in (b - h, b, b + h)]


def _marker(style: Style, x: float, y: float) -> Markup:
    size = MARKER_SIZE
    return tag(
        "use", href=f"#k{style.index}", x=x - size / 2, y=y - size / 2, width=size, height=size
    )


def _vertical(x: float, height: float, kind: str) -> Markup:
    return tag("line", x1=x, x2=x, y1=TOP, y2=height - BOTTOM, class_=kind)


def _x_axis(x: Scale, ticks: list[float], label: str, height: float) -> list[Markup]:
    base = height - BOTTOM
    parts = [_vertical(x(t), height, "grid") for t in ticks]
    parts.append(tag("line", x1=x.start, x2=x.end, y1=base, y2=base, class_="axis"))
    parts += [tag("text", f"{t:g}", x=x(t), y=base + 15, text_anchor="middle") for t in ticks]
    middle = (x.start + x.end) / 2
    parts.append(tag("text", label, x=middle, y=base + 32, text_anchor="middle", class_="label"))
    return parts


def _y_axis(y: Scale) -> list[Markup]:
    parts = []
    for t in y.ticks():
        line = {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": y(t), "y2": y(t)}
        parts.append(tag("line", class_="grid", **line))
        parts.append(tag("text", f"{t:g}", x=LEFT - 6, y=y(t) + 4, text_anchor="end"))
    return parts


def _figure(title: str, inside: Iterable[Markup], height: float) -> Markup:
    heading = tag("text", title, x=2, y=14, class_="title")
    drawing = tag(
        "svg", heading, inside, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=title
    )
    return tag("figure", drawing)
