"""Changes to the pictures of a training task. None is made by default, as in the paper."""

from __future__ import annotations

import numpy as np

from metamirror.data.image_set import Pixels
from metamirror.data.image_tasks import Augment


def flip(pictures: Pixels, random: np.random.Generator) -> Pixels:
    """Mirrors each picture left to right with probability 1/2."""
    mirrored = random.random(len(pictures)) < 0.5
    pictures[mirrored] = pictures[mirrored, :, :, ::-1]
    return pictures


def shift(pictures: Pixels, random: np.random.Generator) -> Pixels:
    """Moves each picture by up to a tenth of its size; the edge is repeated."""
    reach = max(1, pictures.shape[-1] // 10)
    padded = np.pad(pictures, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    height, width = pictures.shape[2:]
    for i, (top, left) in enumerate(random.integers(0, 2 * reach + 1, (len(pictures), 2))):
        pictures[i] = padded[i, :, top : top + height, left : left + width]
    return pictures


AUGMENTATIONS: dict[str, Augment] = {"flip": flip, "shift": shift}


def augmentation(names: str) -> Augment | None:
    """The changes named, one after the other, as in `flip,shift`; `none` for none.

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
    chosen = [AUGMENTATIONS[name] for name in words]

    def augment(pictures: Pixels, random: np.random.Generator) -> Pixels:
        for change in chosen:
            pictures = change(pictures, random)
        return pictures

    return augment
