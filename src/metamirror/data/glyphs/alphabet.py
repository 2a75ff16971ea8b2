"""Which letters are classes, which of them look alike, and which split each belongs to."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from metamirror.data.addressing import SPLITS
from metamirror.data.glyphs.faces import FACES, bitmap, characters, shows

MIN_FACES = 4

# Whole scripts are held out, so that a test task shows letters of an unknown kind. Greek alone
# keeps some 30 letters that no Latin or Cyrillic one resembles; Coptic is drawn in its style,
# and Hebrew, which has little in common with the others, brings the validation classes above 40.
_SPLIT = {
    **dict.fromkeys(("Greek", "Coptic", "Hebrew"), "val"),
    **dict.fromkeys(("Georgian", "Armenian"), "test"),
}
# The first word of a letter's Unicode name is its script, save for these.
_SCRIPT = {
    "CANADIAN": "Canadian Syllabics",
    "OLD": "Old Italic",
    "TURNED": "Latin",
    "ROMAN": "Latin",
    "CARON": "Modifier",
}

# Look-alikes are sought in the faces of regular weight: between bold strokes there is too little
# room to tell letters apart. Of the slanted ones only Serif has shapes of its own, such as an
# italic Greek alpha that is the Latin one. Each letter has the first or the third of these faces.
_COMPARED = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic")
_SIDE, _BOX = 28, 24
# The share of a letter's ink that may lie more than a pixel from the other's, as 1 in so many.
# Chosen by eye, from sheets of pairs in the order of this share. Up to 1/40 stand o and O, Latin
# and Greek A, n and Cyrillic п, u and U, and few pairs that one would tell apart when deformed.
# From there to 1/30 they are mixed: ნ and ƃ, or Ր and ᒋ, beside Arabic letters with two or three
# dots. In one split those are hard classes; in two, a shape seen in training costs more than a
# class. Beyond 1/30 most pairs differ by a stroke: i and l (1/24), A and Λ (1/15), e and o (1/8).
_ALIKE, _ALIKE_ACROSS_SPLITS = 40, 30


@dataclass(frozen=True)
class Letter:
    """One class: a letter, standing for all that look like it, in the faces that have it."""

    character: str
    script: str
    split: str
    faces: tuple[str, ...]


@cache
def letters() -> tuple[Letter, ...]:
    """Return the classes: letters of all scripts, look-alikes counted once, in a fixed order.

    A shape that occurs in several splits belongs to the first of train, val and test.

    >>> [letter.character for letter in letters()[:5]]
    ['A', 'B', 'C', 'D', 'E']
    """

    # Latin first: of look-alikes in train, the one that most readers know stands for the class.
    def rank(letter: Letter) -> tuple[int, bool, int]:
        return SPLITS.index(letter.split), letter.script != "Latin", ord(letter.character)

    found = sorted(candidates(), key=rank)
    alike = look_alikes(found)
    kept: list[int] = []
    # A letter is compared with those kept, not with those dropped: a chain of small differences
    # would join letters that look nothing like each other.
    for i in range(len(found)):
        if not alike[i, kept].any():
            kept.append(i)
    return tuple(found[i] for i in kept)


def candidates() -> Iterator[Letter]:
    """Yield every letter in its base form that enough faces have, look-alikes included."""
    for character in sorted(set().union(*map(characters, FACES))):
        if not unicodedata.category(character).startswith("L"):
            continue
        if unicodedata.normalize("NFKD", character) != character:
            continue
        if sum(character in characters(face) for face in FACES) < MIN_FACES:
            continue
        faces = tuple(face for face in FACES if shows(face, character))
        if len(faces) >= MIN_FACES:
            word = unicodedata.name(character).split()[0]
            script = _SCRIPT.get(word, word.capitalize())
            yield Letter(character, script, _SPLIT.get(script, "train"), faces)


def look_alikes(found: list[Letter]) -> NDArray[np.bool_]:
    """Return which letters have nearly the same shape in one of the compared faces."""
    alike = np.zeros((len(found), len(found)), dtype=bool)
    split = np.array([SPLITS.index(letter.split) for letter in found])
    one_in = np.where(split[:, None] == split, _ALIKE, _ALIKE_ACROSS_SPLITS).astype(np.float32)
    for face in _COMPARED:
        have = np.array([i for i, letter in enumerate(found) if face in letter.faces])
        ink = np.stack([_shape(bitmap(face, found[i].character)) for i in have])
        # Ones and zeros: in single precision every sum below is an exact integer.
        rows = ink.reshape(len(have), -1).astype(np.float32)
        for axis in (1, 2):  # widened by a pixel; the empty margin keeps the ends of a row apart
            ink = ink | np.roll(ink, 1, axis) | np.roll(ink, -1, axis)
        beyond = rows @ (~ink).reshape(len(have), -1).astype(np.float32).T
        both = np.ix_(have, have)
        covered = beyond * one_in[both] < rows.sum(1, keepdims=True)
        alike[both] |= covered & covered.T
    return alike


def _shape(ink: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the letter in a standard box, half-way to a square unless it is a bar or a dot."""
    side = max(ink.shape)
    box = min(_BOX, max(1, _BOX * side // 40))  # dots and commas stay small
    image = np.zeros((_SIDE, _SIDE), dtype=bool)
    lengths, lines = [], []
    for n in ink.shape:
        length = n * box // side
        length = max(1, (length + box) // 2 if 3 * n > side else length)
        lengths.append(length)
        # For each quarter of a pixel of the box, the letter's pixel on which its centre falls.
        lines.append((2 * np.arange(4 * length) + 1) * n // (8 * length))
    fine = ink[np.ix_(*lines)].astype(np.int32)
    coarse = fine.reshape(lengths[0], 4, lengths[1], 4).sum((1, 3))
    top, left = ((_SIDE - length) // 2 for length in lengths)
    image[top : top + lengths[0], left : left + lengths[1]] = coarse >= 16 * 96
    return image
