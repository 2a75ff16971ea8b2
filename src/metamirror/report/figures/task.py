"""An image of one task: what a model may learn from, and what it is then asked."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metamirror.core.tasks import Batch, Task
from metamirror.report.charts import GREY, save

MAX_WAYS, MAX_ROWS = 20, 5
"""What is shown at most: classes, and support or query images of each."""
COLUMN = 0.72
"""The width of a class in inches."""


def draw_task(task: Task, captions: Sequence[str], path: Path) -> None:
    """Write a PNG of one task: a column for each class, the support above and the query below.

    The task has no task axis; captions are the names of the classes, in the order of the labels.
    """
    parts = {
        name: _by_class(batch, name, len(captions))
        for name, batch in (("support", task.support), ("query", task.query))
    }
    mosaics = [_mosaic(images) for images in parts.values()]
    ways = min(len(captions), MAX_WAYS)
    heights = [COLUMN * ways * mosaic.shape[0] / mosaic.shape[1] for mosaic in mosaics]
    # A narrow task still has to fit its headings.
    size = (max(COLUMN * ways, 2.2) + 0.3, sum(heights) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    both = figure.subplots(2, height_ratios=heights)
    for axes, mosaic, (name, images) in zip(both, mosaics, parts.items(), strict=True):
        axes.imshow(mosaic, interpolation="nearest")
        most = max(map(len, images))
        title = name if most <= MAX_ROWS else f"{name}: {MAX_ROWS} of {most} per class"
        axes.set_title(title, loc="left", fontsize=9, color=GREY)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set(xticks=[], yticks=[])
    step = mosaics[0].shape[1] / ways
    both[0].xaxis.tick_top()
    both[0].set_xticks(
        [step * (i + 0.47) for i in range(ways)], map(_caption, range(ways), captions)
    )
    for name, text in zip(captions, both[0].get_xticklabels(), strict=False):
        # The serif face has the few letters that the first one lacks.
        text.set(fontsize=7 if len(name) > 2 else 11, family=["DejaVu Sans", "DejaVu Serif"])
        text.set_parse_math(False)  # no mathematics in a name
    save(figure, path, dpi=200)


def _caption(label: int, name: str) -> str:
    """Return a label above its name, which has at most two lines that fit a column."""
    words = name.replace("_", " ")
    return f"{label}\n" + "\n".join(textwrap.wrap(words, 10, max_lines=2, placeholder="…"))


def _by_class(batch: Batch, name: str, ways: int) -> list[NDArray[np.float32]]:
    """Return the images of each class that is shown, (images, height, width, 3)."""
    x, y = batch
    if x.dim() != 4 or x.shape[1] not in (1, 3) or y.shape != x.shape[:1]:
        raise ValueError(
            f"{name} has images {tuple(x.shape)} and labels {tuple(y.shape)}; one task has "
            f"(examples, 1 or 3 channels, height, width) and (examples,): take it from its stack"
        )
    labels = y.detach().cpu().numpy()
    if set(labels.tolist()) != set(range(ways)):
        raise ValueError(
            f"there are {ways} captions, and the labels of {name} are "
            f"{sorted(set(labels.tolist()))}; each class needs one caption, in label order"
        )
    images = x.detach().cpu().float().clamp(0, 1).expand(-1, 3, -1, -1).movedim(1, 3).numpy()
    return [images[labels == label] for label in range(min(ways, MAX_WAYS))]


def _mosaic(of_class: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return a column for each class, on white."""
    rows = min(max(map(len, of_class)), MAX_ROWS)
    height, width = of_class[0].shape[1:3]
    gap = max(1, round(width / 16))
    mosaic = np.ones((rows * (height + gap), len(of_class) * (width + gap), 3), dtype=np.float32)
    for column, images in enumerate(of_class):
        for row, image in enumerate(images[:rows]):
            y, x = row * (height + gap), column * (width + gap)
            mosaic[y : y + height, x : x + width] = image
    return mosaic
