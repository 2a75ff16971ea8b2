"""Do examples look like the images that a start was trained on?"""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from metamirror.core.files import read_json
from metamirror.data.image_ranges import SEEN, Ranges, outside
from metamirror.estimators.starts import SHIPPED, Start, shipped_names

MOST_OUTSIDE = 0.5
"""Examples of which more than this share are beyond a range look like something else."""


class UnfamiliarExamplesWarning(UserWarning):
    """The examples do not look like what the start was trained on."""


def unfamiliar(start: Start, examples: Tensor, called: str | None = None) -> str | None:
    """Return how examples differ from what a start has seen, and the way out; None if they do not.

    Nor if nobody knows what it has seen: shipped starts and run folders have a file that says it.
    The start may be called something else than its path.
    """
    ranges = _seen_by(start)
    if ranges is None or examples.dim() != 4:
        return None
    shares = outside(examples.cpu(), ranges)
    if not max(shares.values()) > MOST_OUTSIDE:
        return None
    most = max(shares, key=shares.__getitem__)
    words = (
        f"the examples do not look like what {called or start} was trained on ({most}: "
        f"{shares[most]:.0%} of them are outside its range), so its predictions may be worthless "
        f"even where they are confident"
    )
    if not max(outside(1 - examples.cpu(), ranges).values()) > MOST_OUTSIDE:
        return (
            f"{words}; with dark and light exchanged they do: use invert (--invert), or ink "
            f"(--ink) for drawings"
        )
    if str(start) == "photos":
        return f"{words}: use a backbone, a start of the kind glyphs-, or train one"
    return f"{words}: for photographs use photos or a backbone; or train one with metamirror train"


def _seen_by(start: Start) -> Ranges | None:
    """Return the ranges beside a shipped start, or in a run folder."""
    if not isinstance(start, str | os.PathLike):
        return None
    file = (SHIPPED / start if start in shipped_names() else Path(start)) / SEEN
    if not file.is_file():
        return None
    found: Any = read_json(file)
    try:
        return {name: (float(low), float(high)) for name, (low, high) in found["ranges"].items()}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{file} holds no ranges of images ({error}): remove it") from error
