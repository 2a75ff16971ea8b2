"""One colour and one marker for a method, the same in every picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from metamirror.methods import METHODS

PALETTE = (
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
)
"""On light and on dark ground; any two can be told apart without red, green or blue cones.

The markers differ as well, for print in grey.
"""

MARKERS = "os^vDPX*ph"
"""As matplotlib names them."""

DASHES = ((), (6.0, 3.0), (2.0, 2.5), (8.0, 3.0, 2.0, 3.0))
"""Of the first, second, ... curve of one method."""


@dataclass(frozen=True)
class Style:
    """How a method looks: an index into the palette and the markers, and the dashes of a line."""

    index: int
    dashes: tuple[float, ...] = ()

    @property
    def colour(self) -> str:
        """On light ground."""
        return PALETTE[self.index][0]

    @property
    def marker(self) -> str:
        """As matplotlib names it."""
        return MARKERS[self.index]


def style_of(method: str) -> Style:
    """The style of a method, by its place in the registry; anything may follow its name."""
    key = re.split(r"\W", method, maxsplit=1)[0]
    keys = list(METHODS)
    return Style((keys.index(key) if key in keys else len(PALETTE) - 1) % len(PALETTE))


def styles_of(methods: Iterable[str]) -> list[Style]:
    """A style for each curve; further curves of one method have its colour and other dashes."""
    seen: Counter[int] = Counter()
    styles = []
    for method in methods:
        index = style_of(method).index
        styles.append(Style(index, DASHES[seen[index] % len(DASHES)]))
        seen[index] += 1
    return styles
