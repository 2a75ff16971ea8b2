"""Drawings and picture files, made into what a start was trained on.

A start knows letters of one size in the middle of the picture, with strokes of a letter's
thickness, light on dark. A person draws small or large, in a corner, with any pen, and
photographs dark ink on grey paper. Both the examples and what is to be recognised pass through
here, so that they differ in what they show and not in how it was drawn.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from metamirror.data.reading.pictures import fit

LETTER = 19 / 28
"""The longer side of a letter, as a share of the picture: that of `glyphs`."""
PEN = 2.6 / 28
"""The thickness of a stroke: between the regular and the bold faces of `glyphs`."""
SMALLEST = 0.2
"""A drawing that takes less of the pad is a dot or a comma, and stays small."""
AT_ONCE = 256
"""Line segments that are measured at a time, so that memory does not grow with a drawing."""
FAINTEST = 24
"""Of 255: what differs less than this from the paper is noise, and so is a whole picture of it."""
FLOOR = 0.25
"""Of the darkest ink: below it there are shadows on the paper."""


@dataclass(frozen=True)
class Strokes:
    """The way of a pen, stroke by stroke: points (x, y) in [0, 1], x to the right, y down."""

    lines: tuple[tuple[tuple[float, float], ...], ...]


@dataclass(frozen=True)
class Pixels:
    """Bytes (height, width, channels)."""

    values: NDArray[np.uint8]

    def described(self) -> dict[str, Any]:
        """As requests and answers have it.

        >>> Pixels(np.zeros((1, 2, 1), np.uint8)).described()
        {'width': 2, 'height': 1, 'channels': 1, 'pixels': 'AAA='}
        """
        height, width, channels = self.values.shape
        return {
            "width": width,
            "height": height,
            "channels": channels,
            "pixels": base64.b64encode(self.values.tobytes()).decode(),
        }


Picture = Strokes | Pixels


def prepare(picture: Picture, channels: int, size: int) -> NDArray[np.uint8]:
    """The picture as a start takes it: (size, size, channels).

    A grey start gets light ink on a dark ground, brought to the middle and to a letter's size; one
    for colours gets the photograph as it is, or the drawing on white paper.

    >>> prepare(Strokes((((0.1, 0.1), (0.2, 0.3)),)), 1, 28).shape
    (28, 28, 1)
    """
    if isinstance(picture, Strokes):
        ink = _draw(picture, size)
        return ink if channels == 1 else np.repeat(255 - ink, 3, axis=2)
    if channels == 3:
        return fit(picture.values, size, 3)
    return _centre(_ink(picture), size)


def _draw(drawing: Strokes, size: int) -> NDArray[np.uint8]:
    """Light strokes on a dark ground, as thick however large the drawing was."""
    lines = [np.array(line, np.float32) for line in drawing.lines]
    points = np.concatenate(lines)
    low, high = points.min(0), points.max(0)
    pen = PEN * size
    # From pad to picture; what sticks out of the points is half a pen on each side.
    scale = (LETTER * size - pen) / max(float((high - low).max()), SMALLEST)
    lines = [(line - (low + high) / 2) * scale + size / 2 for line in lines]
    # A single point is a line to itself: a dot.
    begins = np.concatenate([line[: max(len(line) - 1, 1)] for line in lines])
    ends = np.concatenate([line[min(len(line) - 1, 1) :] for line in lines])
    # Half a pixel on each side of the edge, over which the ink fades.
    ink = np.clip((pen + 1) / 2 - _distances(begins, ends, size), 0, 1)
    picture: NDArray[np.uint8] = np.rint(255 * ink).astype(np.uint8)
    return picture[..., None]


def _distances(
    begins: NDArray[np.float32], ends: NDArray[np.float32], size: int
) -> NDArray[np.float32]:
    """From the centre of each pixel to the nearest of the line segments."""
    middles = np.arange(size, dtype=np.float32) + 0.5
    x, y = (axis[..., None] for axis in np.meshgrid(middles, middles))
    nearest = np.full((size, size), np.inf, np.float32)
    for i in range(0, len(begins), AT_ONCE):
        (x0, y0), (x1, y1) = begins[i : i + AT_ONCE].T, ends[i : i + AT_ONCE].T
        dx, dy = x1 - x0, y1 - y0
        length = np.maximum(dx * dx + dy * dy, 1e-6)
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / length, 0, 1)
        squares = (x - x0 - along * dx) ** 2 + (y - y0 - along * dy) ** 2
        np.minimum(nearest, squares.min(2), out=nearest)
    return np.sqrt(nearest)


def _ink(picture: Pixels) -> NDArray[np.float32]:
    """How far each pixel is from the paper, which is what most of the border shows, in [0, 1]."""
    values = picture.values
    grey = (
        np.asarray(Image.fromarray(values).convert("L")) if values.shape[2] == 3 else values[..., 0]
    )
    border = np.concatenate([grey[0], grey[-1], grey[1:-1, 0], grey[1:-1, -1]])
    ink = np.abs(grey.astype(np.float32) - np.median(border))
    if ink.max() < FAINTEST:
        raise ValueError("is blank: nothing in it differs from its border")
    share: NDArray[np.float32] = np.clip((ink / ink.max() - FLOOR) / (1 - FLOOR), 0, 1)
    return share


def _centre(ink: NDArray[np.float32], size: int) -> NDArray[np.uint8]:
    """The inked part, brought to a letter's size and to the middle."""
    rows, columns = (np.flatnonzero(ink.max(axis) > FLOOR) for axis in (1, 0))
    inked = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = LETTER * size / max(max(inked.shape), SMALLEST * max(ink.shape))
    height, width = (max(1, round(n * scale)) for n in inked.shape)
    # PIL widens its filter where a picture shrinks, so that thin strokes fade and do not break.
    small = Image.fromarray(inked).resize((width, height), Image.Resampling.BICUBIC)
    strokes = np.asarray(small)
    # Faded ones regain what they had.
    strokes = np.clip(strokes / strokes.max(), 0, 1)
    picture = np.zeros((size, size, 1), np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    picture[top : top + height, left : left + width, 0] = np.rint(255 * strokes)
    return picture
