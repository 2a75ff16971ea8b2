"""The examples of one data set: an array of them, and the rows that belong to each class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""(images, channels, height, width), bytes in 0..255; as a rule memory-mapped."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
"""How the names of image files end, in lower case."""


@dataclass(frozen=True)
class ImageClass:
    """Neighbouring rows, `count` from `start` on, that show the same thing.

    `turns` are the quarter turns by which its images are rotated to make a class of its own.
    """

    name: str
    split: str
    start: int
    count: int
    turns: int = 0


@dataclass(frozen=True)
class ImageSet:
    """A data set of images or other examples, under the name that users type.

    `pixels` is an array (examples, ...): bytes are images, anything else is taken as it is. The
    order of the classes is fixed, since tasks are drawn by position in it. `identity` is a checksum
    of pixels, classes and splits; empty if unknown. `order` has the place of each row in `pixels`,
    where a class is not in one piece there.
    """

    name: str
    pixels: Any
    classes: tuple[ImageClass, ...]
    identity: str = ""
    order: NDArray[np.int64] | None = None

    def of(self, split: str) -> list[ImageClass]:
        """Return the classes of a split."""
        return [c for c in self.classes if c.split == split]

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the examples of some rows, as a copy."""
        found: NDArray[Any] = self.pixels[rows if self.order is None else self.order[rows]]
        return found


def with_quarter_turns(classes: Sequence[ImageClass]) -> tuple[ImageClass, ...]:
    """Return each class four times, as seen from four sides."""
    return tuple(
        replace(c, name=f"{c.name} {90 * turns}°" if turns else c.name, turns=turns)
        for c in classes
        for turns in range(4)
    )
