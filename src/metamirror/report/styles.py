"""One colour and one marker for a method, the same in every picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from metamirror.methods import METHODS

PALETTE = (
    ("#3c4048", "#d5d9e0"),
    ("#b87500", "#f0ad2e"),
    ("#2b95cc", "#6cc4f5"),
    ("#008a64", "#2fc79a"),
    ("#0a5fa8", "#5b9bea"),
    ("#c0588f", "#e59cc5"),
    ("#86692f", "#c9aa70"),
    ("#d1480a", "#ff7a3d"),
    ("#6a3fb5", "#b08cff"),
    ("#868c96", "#8f97a3"),
)
"""On light and on dark ground, after Okabe and Ito: told apart by hue, lightness and marker."""

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
