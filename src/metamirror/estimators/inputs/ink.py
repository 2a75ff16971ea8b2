"""The ink of an image, as starts for letters know it.

Such a start has seen letters of one size in the middle of the image, light on dark. People draw
small or large, in a corner, and photograph dark ink on grey paper. What is found here differs in
what it shows, and not in how it was drawn.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LETTER = 19 / 28  # the longer side of a letter, as a share of the image: that of `glyphs`
SMALLEST = 0.2  # a drawing that takes less of its paper is a dot or a comma, and stays small
FAINTEST = 24  # of 255: what differs less from the paper is noise, and so is a whole image of it
FLOOR = 0.25  # the share of the darkest ink below which a mark counts as a shadow on the paper
LONGEST = 128  # pixels of the longer side that are looked at: letters need fewer, noise goes away


def drawn_on(pixels: NDArray[np.uint8], size: int, name: str = "the image") -> NDArray[np.uint8]:
    """Return the ink of an image (height, width, channels), light on dark: (size, size, 1).

    It is brought to the middle and to a letter's size; dark ink and light ink look alike.

    >>> paper = np.full((60, 90, 3), 240, np.uint8)
    >>> paper[10:20, 5:9] = 30
    >>> found = drawn_on(paper, 28)
    >>> found.shape, int(found[0, 0, 0]), int(found[14, 14, 0])
    ((28, 28, 1), 0, 255)
    """
    flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    image = Image.fromarray(np.ascontiguousarray(flat)).convert("L")
    # PIL widens the filter where an image shrinks, so that thin strokes fade and do not break.
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    grey = np.asarray(image)
    # Ink is what is far from the paper, which most of the border is.
    border = np.concatenate([grey[0], grey[-1], grey[1:-1, 0], grey[1:-1, -1]])
    ink = np.abs(grey.astype(np.float32) - np.median(border))
    if ink.max() < FAINTEST:
        raise ValueError(f"{name} is blank: nothing in it differs from its border")
    ink = np.clip((ink / ink.max() - FLOOR) / (1 - FLOOR), 0, 1)
    rows, columns = (np.flatnonzero(ink.max(axis) > FLOOR) for axis in (1, 0))
    inked = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = LETTER * size / max(max(inked.shape), SMALLEST * max(ink.shape))
    height, width = (max(1, round(n * scale)) for n in inked.shape)
    small = Image.fromarray(inked).resize((width, height), Image.Resampling.BICUBIC)
    strokes = np.asarray(small)
    # Faded ones regain what they had.
    strokes = np.clip(strokes / strokes.max(), 0, 1)
    found = np.zeros((size, size, 1), np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    found[top : top + height, left : left + width, 0] = np.rint(255 * strokes)
    return found
