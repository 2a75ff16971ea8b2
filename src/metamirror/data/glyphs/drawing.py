"""Letters of many scripts, deformed: few-shot classes wherever matplotlib is installed.

Everything from the random numbers to the pixels is integer arithmetic, whose last bit does not
vary: the same `versions()` and the same seed give the same pixels on every machine.
"""

import unicodedata

import matplotlib
import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import features

from metamirror.data.glyphs.alphabet import Letter
from metamirror.data.glyphs.faces import FACES, bitmap, files_digest, shows

FORMAT = 1
"""The version of the letters; raise it with every change that alters pixels or classes."""

SIDE, SAMPLES = 28, 24

# Lengths are in 1/4096 of a pixel of the image or of the font's rendering, which is about four
# times as fine; matrix entries are in 1/4096.
_BITS = 12
_ONE = 1 << _BITS
_FINE = 4  # sub-pixels per pixel and axis
_FIT = 19  # pixels that the longer side of an undeformed letter takes

# How far a deformation goes, chosen by looking: with half as much again letters leave the image
# and bold ones close up, with half as much the samples of one face are nearly the same.
_STRETCH = _ONE * 18 // 100
_SHEAR = _ONE * 22 // 100
_SHIFT = _ONE
_BEND = _ONE * 11 // 4

# A control point every 7 pixels, and one more beyond each border for the cubic splines.
_CELL = 7
_KNOTS = SIDE // _CELL + 3
_NUMBERS = 6 + 2 * _KNOTS**2

_PURPOSE = 0x676C7970  # apart from the random numbers of tasks, whose purposes are 0, 1, ...


def versions() -> dict[str, str]:
    """Return what the pixels depend on, apart from the seed: the key of a cache of them.

    >>> sorted(versions())
    ['faces', 'format', 'freetype', 'matplotlib', 'pillow', 'unicode']
    """
    return {
        "format": str(FORMAT),
        "pillow": PIL.__version__,
        "freetype": str(features.version("freetype2")),
        "matplotlib": matplotlib.__version__,
        "faces": files_digest(),
        "unicode": unicodedata.unidata_version,
    }


def render_letter(letter: Letter, seed: int = 0, samples: int = SAMPLES) -> NDArray[np.uint8]:
    """Return images of one letter, (samples, 28, 28): its faces in turn, each time deformed anew.

    The first images do not depend on how many there are.
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1")
    numbers = _numbers(seed, letter, samples)
    inks = [bitmap(face, letter.character) for face in letter.faces[:samples]]
    matrix, bend = _deformations(numbers)
    return _look_up(inks, np.arange(samples) % len(inks), matrix, bend)


def draw(text: str, seed: int = 0) -> NDArray[np.uint8]:
    """Return one image of each letter of a text, (letters, 28, 28), light on dark.

    Another seed means another face and another deformation.

    >>> draw("αβγ", seed=1).shape
    (3, 28, 28)
    """
    images = []
    for character in text:
        faces = tuple(face for face in FACES if shows(face, character))
        if not faces:
            raise ValueError(f"no face shows {character!r} (U+{ord(character):04X}): leave it out")
        turn = seed % len(faces)
        # Neither script nor split has a say in how a letter is drawn.
        letter = Letter(character, "", "", faces[turn:] + faces[:turn])
        images.append(render_letter(letter, seed, samples=1)[0])
    if not images:
        raise ValueError("text is empty: give at least one letter")
    return np.stack(images)


def _numbers(seed: int, letter: Letter, samples: int) -> NDArray[np.int64]:
    """Integers in 0 .. 2**16 - 1 by letter and sample: other classes do not change the pixels."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}; it must lie in 0 .. 2**63 - 1")
    philox = np.random.Philox(counter=[0, ord(letter.character), 0, 0], key=[seed, _PURPOSE])
    words = -(-_NUMBERS // 4)
    raw = philox.random_raw(samples * words).reshape(samples, words, 1)
    parts = (raw >> np.array([0, 16, 32, 48], dtype=np.uint64)) & np.uint64(0xFFFF)
    return parts.reshape(samples, -1)[:, :_NUMBERS].astype(np.int64)


def _deformations(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Per sample a matrix (2, 2), and how far each pixel's centre moves (2, 28, 28)."""

    def spread(part: NDArray[np.int64], largest: int) -> NDArray[np.int32]:
        return (((part * (2 * largest + 1)) >> 16) - largest).astype(np.int32)

    stretch = spread(numbers[:, 0:2], _STRETCH) + _ONE
    shear = spread(numbers[:, 2:4], _SHEAR)
    matrix = np.stack([stretch[:, 0], shear[:, 0], shear[:, 1], stretch[:, 1]], 1)
    shift = spread(numbers[:, 4:6], _SHIFT)
    knots = spread(numbers[:, 6:], _BEND).reshape(-1, 2, _KNOTS, _KNOTS)
    weights = _spline_weights()
    along = (knots @ weights.T) >> _BITS
    bend = (weights @ along) >> _BITS
    return matrix.reshape(-1, 2, 2), bend + shift[:, :, None, None]


def _spline_weights() -> NDArray[np.int32]:
    """Cubic B-splines at the centres of the pixels, (28, knots), in 1/4096."""
    weights = np.zeros((SIDE, _KNOTS), dtype=np.int32)
    n = 2 * _CELL
    for pixel in range(SIDE):
        cell, t = pixel // _CELL, 2 * (pixel % _CELL) + 1  # t / n in the cell
        cubes = (
            (n - t) ** 3,
            3 * t**3 - 6 * n * t**2 + 4 * n**3,
            -3 * t**3 + 3 * n * t**2 + 3 * n**2 * t + n**3,
            t**3,
        )
        weights[pixel, cell : cell + 4] = [_ONE * cube // (6 * n**3) for cube in cubes]
    return weights


def _look_up(
    inks: list[NDArray[np.uint8]],
    which: NDArray[np.int64],
    matrix: NDArray[np.int32],
    bend: NDArray[np.int32],
) -> NDArray[np.uint8]:
    """Each sub-pixel takes the ink where the deformation sends it; a pixel is their mean."""
    # Font pixels per pixel. A letter much smaller than a capital, a dot or a comma, stays small.
    steps = np.array([max(max(ink.shape) * _ONE // _FIT, 2 * _ONE) for ink in inks])
    # All the ink in one row, with an empty border into which everything outside falls.
    framed = [np.pad(ink, 1) for ink in inks]
    heights, widths = np.array([f.shape for f in framed], dtype=np.int32)[which].T[..., None, None]
    starts = np.cumsum([0] + [f.size for f in framed[:-1]])[which].astype(np.int32)
    step = steps[which]
    matrix = ((matrix * step[:, None, None]) >> _BITS).astype(np.int32)
    bend = ((bend * step[:, None, None, None]) >> _BITS).astype(np.int32)

    count = SIDE * _FINE
    # Distances of the sub-pixels from the centre, in halves of a sub-pixel.
    centred = 2 * np.arange(count, dtype=np.int32) - (count - 1)

    def coordinate(axis: int, extent: NDArray[np.int32]) -> NDArray[np.int32]:
        down, across = (matrix[:, axis, i, None] * centred // (2 * _FINE) for i in (0, 1))
        down = down + (extent[:, 0] << (_BITS - 1))
        place = down.reshape(-1, SIDE, _FINE, 1, 1) + across.reshape(-1, 1, 1, SIDE, _FINE)
        place += bend[:, axis, :, None, :, None]
        place >>= _BITS
        np.maximum(place, 0, out=place)
        np.minimum(place, extent[..., None, None] - 1, out=place)
        return place

    places = coordinate(0, heights)
    places *= widths[..., None, None]
    places += coordinate(1, widths)
    places += starts[:, None, None, None, None]
    ink = np.concatenate([f.ravel() for f in framed]).take(places)
    # A sum of sixteen bytes fits into two; half of sixteen rounds to the nearest.
    total = ink.sum(2, dtype=np.uint16).sum(3, dtype=np.uint16)
    pixels: NDArray[np.uint8] = ((total + _FINE**2 // 2) // _FINE**2).astype(np.uint8)
    return pixels
