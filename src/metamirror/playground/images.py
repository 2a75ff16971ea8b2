"""Letters to try, drawings and image files, made into what a start was trained on.

Both the examples and what is to be recognised pass through here, so that they differ in what they
show and not in how it was drawn: in neither place, size, pen nor paper.
"""

import base64
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metamirror.data.glyphs import draw
from metamirror.estimators.inputs.images import Images
from metamirror.estimators.inputs.ink import LETTER, SMALLEST

PEN = 2.6 / 28  # the thickness of a stroke: between the regular and the bold faces of `glyphs`
AT_ONCE = 256  # line segments measured at a time, so that memory does not grow with a drawing
SETS = ("ԱԲԺՀՖ", "ადკშხ", "ԳԵԽՃՋ", "ვზლჟჯ", "ԾՁՄՇՎ")
"""Letters of scripts that no start has seen in training, Armenian and Georgian: a task each."""
TRIES = 3  # further images of each letter, to be recognised

Pixels = NDArray[np.uint8]
"""Bytes (height, width, channels)."""
Strokes = list[NDArray[np.float32]]
"""The way of a pen, stroke by stroke: points (x, y) in [0, 1], x to the right, y down."""


def described(pixels: Pixels) -> dict[str, Any]:
    """Return the fields of requests and answers.

    >>> described(np.zeros((1, 2, 1), np.uint8))
    {'width': 2, 'height': 1, 'channels': 1, 'pixels': 'AAA='}
    """
    height, width, channels = pixels.shape
    content = base64.b64encode(pixels.tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "pixels": content}


@cache
def sample(number: int) -> dict[str, Any]:
    """Return a set of letters by its number: one example of each class, and images to try.

    >>> [entry["name"] for entry in sample(0)["classes"]]
    ['ayb', 'ben', 'zhe', 'ho', 'feh']
    """
    names = [unicodedata.name(character).split()[-1].lower() for character in SETS[number]]

    def drawn(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
        return zip(names, map(described, draw(SETS[number], seed)[..., None]), strict=True)

    return {
        "classes": [{"name": name, "examples": [image]} for name, image in drawn(0)],
        "tries": [{"name": n, "image": image} for i in range(TRIES) for n, image in drawn(i + 1)],
    }


def prepare(image: Pixels | Strokes, reader: Images, name: str = "the image") -> Pixels:
    """Return the image as the start of this reader takes it: (size, size, channels).

    A start for ink gets it light on a dark ground, in the middle and of a letter's size; any other
    gets the photograph as it is, or the drawing on white paper.

    >>> prepare([np.float32([[0.1, 0.1], [0.2, 0.3]])], Images(1, 28, ink=True)).shape
    (28, 28, 1)
    """
    if isinstance(image, list):
        drawn = _draw(image, reader.size)
        return drawn if reader.ink else np.repeat(255 - drawn, reader.channels, axis=2)
    return reader.fit(image, name)


def _draw(lines: Strokes, size: int) -> Pixels:
    """Return light strokes on a dark ground, as thick however large the drawing was."""
    points = np.concatenate(lines)
    low, high = points.min(0), points.max(0)
    pen = PEN * size
    # From pad to image; what sticks out of the points is half a pen on each side.
    scale = (LETTER * size - pen) / max(float((high - low).max()), SMALLEST)
    lines = [(line - (low + high) / 2) * scale + size / 2 for line in lines]
    # A single point is a line to itself: a dot.
    begins = np.concatenate([line[: max(len(line) - 1, 1)] for line in lines])
    ends = np.concatenate([line[min(len(line) - 1, 1) :] for line in lines])
    centres = np.arange(size, dtype=np.float32) + 0.5
    x, y = (axis[..., None] for axis in np.meshgrid(centres, centres))
    # Squares of the distance from the centre of each pixel to the nearest line segment.
    nearest = np.full((size, size), np.inf, np.float32)
    for i in range(0, len(begins), AT_ONCE):
        (x0, y0), (x1, y1) = begins[i : i + AT_ONCE].T, ends[i : i + AT_ONCE].T
        dx, dy = x1 - x0, y1 - y0
        length = np.maximum(dx * dx + dy * dy, 1e-6)
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / length, 0, 1)
        squares = (x - x0 - along * dx) ** 2 + (y - y0 - along * dy) ** 2
        np.minimum(nearest, squares.min(2), out=nearest)
    # Half a pixel on each side of the edge, over which the ink fades.
    ink = np.clip((pen + 1) / 2 - np.sqrt(nearest), 0, 1)
    drawn: Pixels = np.rint(255 * ink).astype(np.uint8)
    return drawn[..., None]
