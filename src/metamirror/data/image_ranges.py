"""What images look like in a few numbers, and the range of each over a data set.

A model that has seen letters alone answers about photographs too, and is as sure of itself. These
numbers need no network and tell the two apart: letters have one ground and hardly any half-tones.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from metamirror.core.files import write_json
from metamirror.data.image_tasks import ImageTasks
from metamirror.data.task_stream import TaskStream

SEEN = "seen.json"
"""The file beside a learner that says what it was trained on."""
TASKS = 25
"""Tasks from whose images ranges are taken."""
EDGE = 0.05
"""The share of images beyond each end of a range: a few odd ones do not widen it."""
ROOM, SHARE = 0.05, 0.1
"""A range is widened by this on both sides, and by this share of its length."""

Ranges = dict[str, tuple[float, float]]
"""Statistics by name, with the values between which all but a few images lie."""


def statistics_of(images: Tensor) -> dict[str, Tensor]:
    """Return numbers in [0, 1] for each image (examples, channels, height, width) in [0, 1].

    The ground is the median, half-tones are the share of pixels from 0.2 to 0.8, contrast is the
    standard deviation, detail the mean step to the next pixel, and colour the mean distance
    between the channels.

    >>> {name: float(value) for name, value in statistics_of(torch.zeros(1, 3, 4, 4)).items()}
    {'ground': 0.0, 'half-tones': 0.0, 'contrast': 0.0, 'detail': 0.0, 'colour': 0.0}
    """
    grey = images.float().mean(1)
    flat = grey.flatten(1)
    steps = (grey.diff(dim=1).abs().flatten(1), grey.diff(dim=2).abs().flatten(1))
    return {
        "ground": flat.median(1).values,
        "half-tones": ((flat > 0.2) & (flat < 0.8)).float().mean(1),
        "contrast": flat.std(1, correction=0),
        "detail": torch.cat(steps, 1).mean(1),
        "colour": (images.amax(1) - images.amin(1)).float().flatten(1).mean(1),
    }


def ranges_of(batches: Iterable[Tensor]) -> Ranges:
    """Return the range of each statistic over many images, which come in batches.

    >>> ranges_of([torch.zeros(100, 1, 4, 4)])["ground"]
    (0.0, 0.0)
    """
    found = [statistics_of(images) for images in batches]
    ends = torch.tensor([EDGE, 1 - EDGE])
    joined = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    pairs = {name: values.quantile(ends).tolist() for name, values in joined.items()}
    return {name: (round(low, 4), round(high, 4)) for name, (low, high) in pairs.items()}


def outside(images: Tensor, ranges: Ranges) -> dict[str, float]:
    """Return the share of images that are clearly beyond each range.

    >>> outside(torch.ones(4, 1, 8, 8), ranges_of([torch.zeros(100, 1, 8, 8)]))["ground"]
    1.0
    """
    shares = {}
    for name, values in statistics_of(images).items():
        low, high = ranges[name]
        room = ROOM + SHARE * (high - low)
        shares[name] = float(((values < low - room) | (values > high + room)).float().mean())
    return shares


def write_seen(folder: Path, stream: TaskStream) -> None:
    """Write the ranges of the images of a stream's first tasks; nothing if it has no images."""
    # Images are bytes or lie in [0, 1]; what makes its own tasks is not asked for any beforehand.
    shape = stream.example_shape if isinstance(stream, ImageTasks) else ()
    if len(shape) != 3 or shape[0] not in (1, 3):
        return
    tasks = (stream.task(step, 0) for step in range(TASKS))
    ranges = ranges_of(batch.x for task in tasks for batch in task)
    write_json(folder / SEEN, {"tasks": TASKS, "ranges": ranges})
