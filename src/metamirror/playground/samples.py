"""Letters to try the page with, of scripts that no start has seen in training."""

import unicodedata
from functools import cache
from typing import Any

from metamirror.data.glyphs import draw
from metamirror.playground.images import described

SETS = ("ԱԲԺՀՖ", "ადკშხ", "ԳԵԽՃՋ", "ვზლჟჯ", "ԾՁՄՇՎ")
"""Armenian and Georgian; each set is a task."""
TRIES = 3
"""Further images of each letter, to be recognised."""


@cache
def sample(number: int) -> dict[str, Any]:
    """Return a set of letters by its number: one example of each class, and images to try.

    >>> [entry["name"] for entry in sample(0)["classes"]]
    ['ayb', 'ben', 'zhe', 'ho', 'feh']
    """
    names = [unicodedata.name(character).split()[-1].lower() for character in SETS[number]]

    def drawn(seed: int) -> list[tuple[str, dict[str, Any]]]:
        images = draw(SETS[number], seed)[..., None]
        return [(n, described(p)) for n, p in zip(names, images, strict=True)]

    return {
        "classes": [{"name": name, "examples": [image]} for name, image in drawn(0)],
        "tries": [
            {"name": name, "image": image}
            for seed in range(1, TRIES + 1)
            for name, image in drawn(seed)
        ],
    }
