"""A picture of one task: what a model may learn from, and what it is then asked."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from metamirror.core.tasks import Batch, Task
from metamirror.report.charts import GREY, save

MAX_WAYS, MAX_ROWS = 20, 5
"""What is shown at most: classes, and support or query pictures of each."""

# In inches: a column, the space that words take above the pictures, and the figure's margin.
_COLUMN, _CAPTION, _HEADING, _MARGIN = 0.72, 0.54, 0.36, 0.16
# The serif face has the few letters that the first one lacks.
_FONTS = ["DejaVu Sans", "DejaVu Serif"]


def draw_task(task: Task, captions: Sequence[str], path: Path) -> None:
    """Writes a PNG of one task: a column for each class, the support above and the query below.

    Args:
        task: without a task axis; pictures are (channels, height, width) in [0, 1].
        captions: the name of each class, in the order of the labels.
        path: of the PNG; its folder is made if need be.
    """
    support, query = (
        _by_class(batch, name, len(captions))
        for batch, name in ((task.support, "support"), (task.query, "query"))
    )
    # A narrow task still has to fit its headings.
    width = max(len(support) * _COLUMN, 2.2) + 2 * _MARGIN
    parts = [("support", support, _mosaic(support)), ("query", query, _mosaic(query))]
    heights = [_COLUMN * len(support) * m.shape[0] / m.shape[1] for _, _, m in parts]
    height = 2 * _MARGIN + _CAPTION + 2 * _HEADING + sum(heights)
    figure = Figure(figsize=(width, height))

    for label, caption in enumerate(captions[:MAX_WAYS]):
        x, y = (_MARGIN + (label + 0.47) * _COLUMN) / width, 1 - _MARGIN / height
        figure.text(x, y, str(label), ha="center", va="top", fontsize=8, color=GREY)
        name, size = _shortened(caption)
        y -= 0.33 / height
        text = figure.text(x, y, name, ha="center", va="center", fontsize=size, family=_FONTS)
        text.set_parse_math(False)  # no mathematics in a name
    top = _MARGIN + _CAPTION
    for (title, pictures, mosaic), tall in zip(parts, heights, strict=True):
        most, shown = max(map(len, pictures)), min(max(map(len, pictures)), MAX_ROWS)
        words = title if shown == most else f"{title}: {shown} of {most} per class"
        y = 1 - (top + 0.6 * _HEADING) / height
        figure.text(_MARGIN / width, y, words, va="center", fontsize=9, color=GREY)
        top += _HEADING + tall
        box = (_MARGIN / width, 1 - top / height, len(pictures) * _COLUMN / width, tall / height)
        axes = figure.add_axes(box)
        axes.imshow(mosaic, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
    save(figure, path, dpi=200)


def _by_class(batch: Batch, name: str, ways: int) -> list[NDArray[np.float32]]:
    """The pictures of each class that is shown, (pictures, height, width, 3)."""
    x, y = batch
    if x.dim() != 4 or x.shape[1] not in (1, 3) or y.shape != x.shape[:1]:
        raise ValueError(
            f"{name} has pictures {tuple(x.shape)} and labels {tuple(y.shape)}; one task has "
            f"(examples, 1 or 3 channels, height, width) and (examples,): take it from its stack"
        )
    labels = y.detach().cpu().numpy()
    if set(labels.tolist()) != set(range(ways)):
        raise ValueError(
            f"there are {ways} captions, and the labels of {name} are "
            f"{sorted(set(labels.tolist()))}; each class needs one caption, in label order"
        )
    pictures = _rgb(x)
    return [pictures[labels == label] for label in range(min(ways, MAX_WAYS))]


def _rgb(x: Tensor) -> NDArray[np.float32]:
    channels_last = x.detach().cpu().float().clamp(0, 1).expand(-1, 3, -1, -1).movedim(1, 3)
    pictures: NDArray[np.float32] = channels_last.numpy()
    return pictures


def _mosaic(of_class: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """A column for each class, on white."""
    rows = min(max(map(len, of_class)), MAX_ROWS)
    height, width = of_class[0].shape[1:3]
    gap = max(1, round(width / 16))
    shape = (rows * (height + gap), len(of_class) * (width + gap), 3)
    mosaic = np.ones(shape, dtype=np.float32)
    for column, pictures in enumerate(of_class):
        for row, picture in enumerate(pictures[:rows]):
            y, x = row * (height + gap), column * (width + gap)
            mosaic[y : y + height, x : x + width] = picture
    return mosaic


def _shortened(caption: str) -> tuple[str, float]:
    """At most two lines that fit a column, and their size in points."""
    if len(caption) <= 2:
        return caption, 14
    words = caption.replace("_", " ")
    return "\n".join(textwrap.wrap(words, 10, max_lines=2, placeholder="…")), 7
