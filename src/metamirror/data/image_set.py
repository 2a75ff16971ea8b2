"""The images of one data set: bytes in one array, and the rows that belong to each class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""(images, channels, height, width), bytes in 0..255; as a rule memory-mapped."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
"""How the names of image files end, in lower case."""


@dataclass(frozen=True)
class ImageClass:
    """Neighbouring rows of the array, `count` from `start` on, that show the same thing.

    `turns` are the quarter turns by which its images are rotated to make a class of its own.
    """

    name: str
    split: str
    start: int
    count: int
    turns: int = 0


@dataclass(frozen=True)
class ImageSet:
    """A data set of images, under the name that users type.

    The order of the classes is fixed, since tasks are drawn by position in it. `identity` is a
    checksum of pixels, classes and splits as installed; empty if not installed.
    """

    name: str
    pixels: Pixels
    classes: tuple[ImageClass, ...]
    identity: str = ""

    def of(self, split: str) -> list[ImageClass]:
        """Return the classes of a split."""
        return [c for c in self.classes if c.split == split]


def with_quarter_turns(classes: Sequence[ImageClass]) -> tuple[ImageClass, ...]:
    """Return each class four times, as seen from four sides."""
    return tuple(
        replace(c, name=f"{c.name} {90 * turns}°" if turns else c.name, turns=turns)
        for c in classes
        for turns in range(4)
    )
