"""Changes to the images of a training task. None is made by default, as in the paper."""

from __future__ import annotations

from functools import reduce

import numpy as np

from metamirror.data.image_set import Pixels
from metamirror.data.image_tasks import Augment


def flip(images: Pixels, random: np.random.Generator) -> Pixels:
    """Mirror each image left to right with probability 1/2."""
    mirrored = random.random(len(images)) < 0.5
    images[mirrored] = images[mirrored, :, :, ::-1]
    return images


def shift(images: Pixels, random: np.random.Generator) -> Pixels:
    """Move each image by up to a tenth of its size; the edge is repeated."""
    reach = max(1, images.shape[-1] // 10)
    padded = np.pad(images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    height, width = images.shape[2:]
    for i, (top, left) in enumerate(random.integers(0, 2 * reach + 1, (len(images), 2))):
        images[i] = padded[i, :, top : top + height, left : left + width]
    return images


AUGMENTATIONS: dict[str, Augment] = {"flip": flip, "shift": shift}


def augmentation(names: str) -> Augment | None:
    """Return the changes named, one after the other, as in `flip,shift`; `none` for none.

    >>> augmentation("none") is None
    True
    """
    if names == "none":
        return None
    words = [word.strip() for word in names.split(",")]
    for name in words:
        if name not in AUGMENTATIONS:
            raise ValueError(
                f"augment is {names!r}: no change is called {name!r}; choose from "
                f"{', '.join(AUGMENTATIONS)}, with commas between them, or none"
            )
    return lambda images, random: reduce(
        lambda changed, name: AUGMENTATIONS[name](changed, random), words, images
    )
