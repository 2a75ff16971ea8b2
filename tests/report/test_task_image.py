"""The image of a task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metamirror.core.tasks import Batch, Task
from metamirror.report.figures.task import draw_task


def made(ways: int, shots: int, queries: int, channels: int, size: int = 28) -> Task:
    generator = torch.Generator().manual_seed(0)

    def batch(per_class: int) -> Batch:
        x = torch.rand(ways * per_class, channels, size, size, generator=generator)
        return Batch(x, torch.arange(ways).repeat(per_class))

    return Task(batch(shots), batch(queries))


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(
    ("ways", "shots", "queries", "channels"), [(2, 1, 1, 1), (5, 5, 15, 3), (20, 1, 5, 1)]
)
def test_a_task_becomes_a_readable_png(ways, shots, queries, channels, tmp_path):
    path = tmp_path / "new" / "task.png"
    captions = [*"Aжᐁა", "$5 and_more", *(f"a rather long name {i}" for i in range(15))]
    draw_task(made(ways, shots, queries, channels), captions[:ways], path)
    pixels = read(path)
    assert min(pixels.shape[:2]) > 300
    assert (pixels[:5] == 255).all()
    assert pixels.std() > 30
    coloured = (pixels.max(2).astype(int) - pixels.min(2) > 60).mean()
    assert (coloured > 0.2) == (channels == 3)


def test_support_is_above_and_query_below_with_a_gap(tmp_path):
    """Black support images, grey query pictures: the rows of the PNG tell them apart."""
    x = torch.zeros(3, 1, 8, 8)
    task = Task(Batch(x, torch.arange(3)), Batch(x + 0.5, torch.arange(3)))
    draw_task(task, ["a", "b", "c"], tmp_path / "task.png")
    pixels = read(tmp_path / "task.png")[:, :, 0]
    column = pixels[:, int(pixels.shape[1] * 0.12)]
    black, grey = np.flatnonzero(column < 10), np.flatnonzero(np.abs(column - 127.0) < 3)
    assert len(black) > 50
    assert len(grey) > 50
    assert grey[-60:].min() - black.max() > 20


def test_every_class_has_its_own_column(tmp_path):
    x = torch.linspace(0.1, 0.7, 4).view(4, 1, 1, 1).expand(4, 1, 8, 8)
    order = torch.tensor([2, 0, 3, 1])
    task = Task(Batch(x[order], order), Batch(x, torch.arange(4)))
    draw_task(task, list("abcd"), tmp_path / "task.png")
    pixels = read(tmp_path / "task.png")[:, :, 0].astype(int)
    found = [np.median(np.nonzero(np.abs(pixels - round(255 * v)) < 2)[1]) for v in (0.1, 0.3, 0.5)]
    assert found == sorted(found)
    assert min(np.diff(found)) > 80


@pytest.mark.parametrize("captions", [["a"] * 4, ["a"] * 6, []])
def test_captions_of_another_number_are_refused(captions, tmp_path):
    with pytest.raises(ValueError, match=f"there are {len(captions)} captions"):
        draw_task(made(5, 1, 2, 1), captions, tmp_path / "task.png")
    assert not list(tmp_path.iterdir())


def test_a_stack_of_tasks_is_refused(tmp_path):
    task = made(5, 1, 2, 1)
    stack = Task(*(Batch(b.x[None], b.y[None]) for b in task))
    with pytest.raises(ValueError, match="take it from its stack"):
        draw_task(stack, list("abcde"), tmp_path / "task.png")
