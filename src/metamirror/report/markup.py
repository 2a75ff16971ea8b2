"""HTML that is escaped by construction: a plain string is text, and only `Markup` is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

NO_END = {"meta", "br"}
CLASS = re.compile(r'<td class="([a-z ]+)"')
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What HTML forbids, or what cannot be encoded: such as half a character in a file's name."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | Iterable["Child"] | None


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element. Attributes that are None or False are left out; `_` in a name stands for `-`.

    >>> tag("a", "x < y", class_="note")
    '<a class="note">x &lt; y</a>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{plain(str(value))}"')
    opening = f"<{' '.join(words)}>"
    if name in NO_END:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other, escaped where they are text."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str | int | float):
            parts.append(plain(str(child)))
        elif child is not None:
            parts.append(join(child))
    return Markup("".join(parts))


def plain(text: str) -> str:
    """Text in which nothing is markup, wherever it stands."""
    return escape(UNPRINTABLE.sub("\ufffd", text), quote=True)


def signed(value: float, digits: int) -> str:
    """A difference, with its sign as print has it."""
    return f"{value:+.{digits}f}".replace("-", "−")


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], **attributes: str) -> Markup:
    """A table in a box of its own, which scrolls where the page is narrow.

    The first column is text; a cell made with `tag("td", ...)` is taken as it is, and the heading
    of a column takes the class of its first cell.
    """
    lines = [list(row) for row in rows]
    body = [
        tag(
            "tr",
            [
                cell
                if isinstance(cell, Markup) and cell.startswith("<t")
                else tag("th" if i == 0 else "td", cell, scope="row" if i == 0 else None)
                for i, cell in enumerate(row)
            ],
        )
        for row in lines
    ]
    first = lines[0] if lines else []
    kinds = [CLASS.match(cell) if isinstance(cell, Markup) else None for cell in first]
    classes = [None if kind is None else kind[1] for kind in kinds]
    heading = tag(
        "tr",
        [
            tag("th", cell, scope="col", class_=classes[i] if i < len(classes) else None)
            for i, cell in enumerate(head)
        ],
    )
    inside = tag("table", tag("thead", heading), tag("tbody", body), **attributes)
    return tag("div", inside, class_="scroll", tabindex=0)
