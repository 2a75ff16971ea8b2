"""An extension of griffe: doctests in docstrings are shown as listings, not as quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


def fenced(docstring: str) -> str:
    """The docstring with a fence around each doctest.

    >>> print(fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()[2:])
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


class Doctests(griffe.Extension):
    """Walks every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
