"""A few drawn letters, without drawing the whole data set first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metamirror.data.glyphs.alphabet import Letter
from metamirror.data.glyphs.drawing import render_letter
from metamirror.data.glyphs.faces import FACES, shows


def draw(text: str, seed: int = 0) -> NDArray[np.uint8]:
    """One picture of each letter of a text, (letters, 28, 28), light on dark.

    Another seed means another face and another deformation.

    >>> draw("αβγ", seed=1).shape
    (3, 28, 28)
    """
    pictures = []
    for character in text:
        faces = tuple(face for face in FACES if shows(face, character))
        if not faces:
            raise ValueError(f"no face shows {character!r} (U+{ord(character):04X}): leave it out")
        turn = seed % len(faces)
        # Neither script nor split has a say in how a letter is drawn.
        letter = Letter(character, "", "", faces[turn:] + faces[:turn])
        pictures.append(render_letter(letter, seed, samples=1)[0])
    if not pictures:
        raise ValueError("text is empty: give at least one letter")
    return np.stack(pictures)
