"""An image of one task for trackers: a row for each class, its support examples side by side."""

import io

import torch

from metamirror.data import TaskStream

MOST = 10
"""How many classes, and examples of each, are shown."""


def task_image(stream: TaskStream) -> bytes | None:
    """Return the first training task as a PNG; None where its examples are no images."""
    shape = stream.example_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        return None
    from PIL import Image

    support = stream.task(0, 0).support
    labels = support.y.unique()[:MOST]
    rows = [support.x[support.y == label][:MOST] for label in labels]
    width = max(map(len, rows))
    grid = torch.ones(len(rows), width, *shape)
    for row, images in zip(grid, rows, strict=True):
        row[: len(images)] = images.float()
    # (classes, examples, channels, height, width) side by side.
    pixels = grid.permute(0, 3, 1, 4, 2).reshape(len(rows) * shape[1], width * shape[2], shape[0])
    shown = (255 * pixels.clamp(0, 1)).round().byte().expand(-1, -1, 3).numpy()
    content = io.BytesIO()
    Image.fromarray(shown).save(content, "png")
    return content.getvalue()
