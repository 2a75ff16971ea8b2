"""One colour and one marker for each method, the same in every figure."""

import re
from collections import Counter
from collections.abc import Iterable
from colorsys import hls_to_rgb
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from metamirror.methods import METHODS

CHOSEN = (
    ("#3c4048", "#d5d9e0"),
    ("#e97602", "#ff9c00"),
    ("#009ce6", "#63c8ff"),
    ("#1e7754", "#00ff70"),
    ("#0044fe", "#8093fd"),
    ("#9c4c8b", "#c55ab5"),
    ("#b58f54", "#b4a369"),
    ("#962900", "#e53009"),
    ("#5d0097", "#8f52ff"),
    ("#979797", "#797879"),
    ("#4e1c14", "#ac462d"),
    ("#4f1058", "#d830d2"),
    ("#e93d71", "#db196a"),
    ("#291128", "#d397ca"),
    ("#597830", "#9cb84d"),
    ("#5f81ab", "#4a688d"),
    ("#2e5035", "#99c4a5"),
    ("#897010", "#ecc754"),
    ("#cc35fa", "#a306d7"),
    ("#b164cd", "#dcc4ec"),
    ("#b3354d", "#d9809e"),
    ("#113029", "#3eaea5"),
    ("#86067e", "#fa82eb"),
    ("#0f5d0f", "#8eed97"),
)
"""The colours on a light and on a dark background; further ones are computed.

Readers with any colour vision can tell any two of the first `SOLID` apart. No more than about ten
colours can have this property: lines of the others are broken as well.
"""

SOLID = 10
"""How many methods have an unbroken line, before each further ten has a pattern of its own."""

Marker = str | tuple[int, Literal[0, 1], int]
"""A marker as matplotlib names it: a letter, or corners, polygon (0) or star (1), and an angle."""

MARKERS: tuple[Marker, ...] = (
    *"os^vDPX*ph<>dH8",
    *((4, 1, 0), (3, 1, 0), (6, 1, 0), (5, 0, 36), (4, 1, 45), (3, 1, 60), (5, 1, 36), (8, 1, 0)),
)
"""Filled ones, which stand out from their line; they differ as well, for print in grey."""

_indices: dict[str, int] = {}


@dataclass(frozen=True)
class Style:
    """The look of a curve: the number of its method, and how many curves of it came before."""

    index: int
    repeat: int = 0

    @property
    def colours(self) -> tuple[str, str]:
        """The colour on a light and on a dark background."""
        if self.index < len(CHOSEN):
            return CHOSEN[self.index]
        # The golden angle never returns to a hue, and neighbours are far apart.
        hue = 137.508 / 360 * self.index % 1
        light, dark = (
            "#" + "".join(f"{round(255 * v):02x}" for v in hls_to_rgb(hue, lightness, 0.65))
            for lightness in (0.35, 0.7)
        )
        return light, dark

    @property
    def css(self) -> str:
        """The colour as CSS, which follows the page's background."""
        return f"light-dark({', '.join(self.colours)})"

    @property
    def marker(self) -> Marker:
        """The marker: a chosen one, then stars of ever more points."""
        if self.index < len(MARKERS):
            return MARKERS[self.index]
        return 9 + self.index - len(MARKERS), 1, 0

    @property
    def dashes(self) -> tuple[float, ...]:
        """Lengths of lines and gaps: solid, then a dash, a dash and a dot, a dash and two dots.

        Of methods after the first ten, long lines with one short gap, with two, and so on.
        """
        own = (10.0, 1.0) + (2.0, 1.0) * (self.index // SOLID - 1) if self.index >= SOLID else ()
        return own + ((6.0, 3.0) + (1.5, 3.0) * (self.repeat - 1) if self.repeat else ())


def style_of(method: str) -> Style:
    """Return the style of a method; options or a run's name may follow the method's key.

    Registered methods are numbered in the order of the registry, others as they are met.
    """
    key = re.split(r"\W", method, maxsplit=1)[0]
    for name in (*METHODS, key):
        _indices.setdefault(name, len(_indices))
    return Style(_indices[key])


def styles_of(methods: Iterable[str]) -> list[Style]:
    """Return a style for each curve; further curves of a method differ in their dashes."""
    seen: Counter[int] = Counter()
    styles = []
    for method in methods:
        index = style_of(method).index
        styles.append(Style(index, seen[index]))
        seen[index] += 1
    return styles


def colours() -> str:
    """Return the colours of pages and methods as CSS; class `m3` is the method of index 3."""
    methods = (f".m{style.index} {{ --c: {style.css}; }}" for style in map(style_of, METHODS))
    page = files("metamirror.report").joinpath("templates/colours.css").read_text()
    return page + "\n".join(methods)
