"""Letters to try the page with, of scripts that no start has seen in training."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any

from metamirror.data.glyphs.alphabet import Letter
from metamirror.data.glyphs.drawing import render_letter
from metamirror.data.glyphs.faces import FACES, shows
from metamirror.playground.pictures import Pixels

SETS = ("ԱԲԺՀՖ", "ადკშხ", "ԳԵԽՃՋ", "ვზლჟჯ", "ԾՁՄՇՎ")
"""Armenian and Georgian; each set is a task."""
EXAMPLES, TRIES = 1, 3
"""Of each letter."""


@cache
def sample(number: int) -> dict[str, Any]:
    """A set of letters by its number: classes with examples, and other pictures of them to try.

    >>> [entry["name"] for entry in sample(0)["classes"]]
    ['ayb', 'ben', 'zhe', 'ho', 'feh']
    """
    classes, tries = [], []
    for character in SETS[number]:
        drawn = render_letter(_letter(character), 0, EXAMPLES + TRIES)
        pictures = [Pixels(picture[..., None]).described() for picture in drawn]
        name = _name(character)
        classes.append({"name": name, "examples": pictures[:EXAMPLES]})
        tries.append([{"name": name, "picture": picture} for picture in pictures[EXAMPLES:]])
    # The letters take turns.
    in_turn = [entry for round_ in zip(*tries, strict=True) for entry in round_]
    return {"classes": classes, "tries": in_turn}


def _letter(character: str) -> Letter:
    faces = tuple(face for face in FACES if shows(face, character))
    return Letter(character, _words(character)[0].capitalize(), "test", faces)


def _name(character: str) -> str:
    return _words(character)[-1].lower()


def _words(character: str) -> list[str]:
    return unicodedata.name(character).split()
