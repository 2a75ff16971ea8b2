"""The built-in letters as tasks: there from the first minute, the same for everyone."""

from __future__ import annotations

import torch

import metamirror as mm
from metamirror.data import open_images


def test_glyphs_need_no_installation():
    task = mm.tasks("glyphs", split="test", ways=5, shots=5, queries=15, seed=3, batch=2)[0]
    assert task.support.x.shape == (2, 25, 1, 28, 28)
    assert task.query.x.shape == (2, 75, 1, 28, 28)
    assert 0 <= task.query.x.min() < task.query.x.max() <= 1


def test_there_are_enough_classes_and_they_are_disjoint():
    images = open_images("glyphs")
    names = {s: {c.name for c in images.of(s)} for s in ("train", "val", "test")}
    assert sum(map(len, names.values())) == len(images.classes) >= 500
    assert min(map(len, names.values())) >= 40
    assert {c.count for c in images.classes} == {24}


def test_letters_can_be_told_apart_but_not_by_their_pixels_alone():
    """Nearest class mean is well above chance and far from solving the tasks."""
    support, query = mm.tasks("glyphs", split="test", ways=5, shots=1, queries=15, batch=200)[0]
    means = support.x.flatten(2)
    accuracy = (torch.cdist(query.x.flatten(2), means).argmin(-1) == query.y).float().mean()
    assert 0.35 < accuracy < 0.75


def test_another_size():
    images = open_images("glyphs", image_size=20)
    assert images.pixels.shape[1:] == (1, 20, 20)
    assert images.pixels.max() > 200
