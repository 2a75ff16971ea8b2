"""Labelled batches: every example once an epoch, with its class, by address."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metamirror.data import ImageClass, ImageSet
from metamirror.data.image_set import with_quarter_turns
from metamirror.data.image_tasks import AUGMENTATIONS, colour
from metamirror.data.labelled_batches import LabelledBatches
from tests.refusals import assert_refused

COUNTS = (5, 3, 4, 2)
SPLITS = ("train", "val", "train", "test")


def numbered(turned: bool = False) -> ImageSet:
    """Images whose first pixel is their row; the classes of train are the first and the third."""
    starts = np.cumsum(COUNTS) - COUNTS
    classes = tuple(
        ImageClass(f"c{i}", split, int(start), count)
        for i, (split, start, count) in enumerate(zip(SPLITS, starts, COUNTS, strict=True))
    )
    pixels = np.zeros((sum(COUNTS), 1, 4, 4), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(sum(COUNTS))
    return ImageSet("numbered", pixels, with_quarter_turns(classes) if turned else classes)


def rows(batches: LabelledBatches, step: int) -> list[int]:
    return (batches[step].x.amax((1, 2, 3)) * 255).round().int().tolist()


def test_an_epoch_has_every_train_example_once_with_its_class():
    batches = LabelledBatches(numbered(), batch=3, seed=0)
    assert (batches.classes, batches.per_epoch) == (2, 3)
    seen = [
        pair
        for step in range(3)
        for pair in zip(rows(batches, step), batches[step].y.tolist(), strict=True)
    ]
    assert sorted(seen) == [(r, 0) for r in range(5)] + [(r, 1) for r in range(8, 12)]


def test_what_fills_no_batch_is_left_out_and_is_another_each_epoch():
    batches = LabelledBatches(numbered(), batch=4, seed=0)
    assert batches.per_epoch == 2
    train = {*range(5), *range(8, 12)}
    left = [train - {*rows(batches, 2 * e), *rows(batches, 2 * e + 1)} for e in range(8)]
    assert all(len(some) == 1 for some in left)
    assert len(set.union(*left)) > 1


def test_a_batch_depends_on_seed_and_step_alone():
    first, again = (LabelledBatches(numbered(), batch=3, seed=0) for _ in range(2))
    backwards = {step: rows(again, step) for step in reversed(range(9))}
    assert all(rows(first, step) == backwards[step] for step in range(9))
    assert len({tuple(backwards[3 * epoch]) for epoch in range(3)}) == 3
    assert rows(LabelledBatches(numbered(), batch=9, seed=1), 0) != rows(
        LabelledBatches(numbered(), batch=9, seed=0), 0
    )


def test_a_batch_is_at_most_the_data_set():
    batches = LabelledBatches(numbered(), batch=100, seed=0)
    assert (batches.batch, batches.per_epoch) == (9, 1)


def test_quarter_turns_are_classes_and_are_turned():
    batches = LabelledBatches(numbered(turned=True), batch=36, seed=0)
    assert batches.classes == 8
    x, y = batches[0]
    # The pixel in the corner goes around: left above, left below, right below, right above.
    corners = [(0, 0), (3, 0), (3, 3), (0, 3)]
    for image, label in zip(x[:, 0], y.tolist(), strict=True):
        if image.max() > 0:  # the first row is black
            assert torch.nonzero(image).tolist() == [list(corners[label % 4])]
    assert sorted(y.tolist()) == sorted(
        [c for c in range(4) for _ in range(5)] + [c for c in range(4, 8) for _ in range(4)]
    )


def test_augmentation_has_the_address_of_the_step():
    plain = LabelledBatches(numbered(), batch=9, seed=0)
    changed = LabelledBatches(numbered(), batch=9, seed=0, augment=AUGMENTATIONS["shift"])
    assert torch.equal(changed[4].x, changed[4].x)
    assert torch.equal(changed[4].y, plain[4].y)
    assert not torch.equal(changed[4].x, plain[4].x)


def test_a_classifier_needs_two_classes():
    assert_refused(
        lambda: LabelledBatches(numbered(), "val", batch=2, seed=0), "has 1 classes.*at least 2"
    )


def test_colours_change_within_bounds_and_grey_stays_grey():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6, 3, 5, 5), dtype=np.uint8)
    changed = colour(images.copy(), np.random.default_rng(1))
    assert (changed.dtype, changed.shape) == (images.dtype, images.shape)
    bright, contrast, saturation = np.random.default_rng(1).uniform(0.6, 1.4, (3, 6, 1, 1, 1))
    for i in range(6):  # the same, image by image and in another order of operations
        x = images[i] * bright[i]
        x = contrast[i] * x + (1 - contrast[i]) * x.mean()
        x = saturation[i] * x + (1 - saturation[i]) * x.mean(0)
        assert np.abs(np.clip(x, 0, 255) - changed[i]).max() <= 0.51
    grey = np.repeat(images[:, :1], 3, axis=1)
    changed = colour(grey, np.random.default_rng(2))
    assert (changed[:, 0] == changed[:, 1]).all()


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_change_keeps_type_and_shape(name: str):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 12, 12), dtype=np.uint8)
    changed = AUGMENTATIONS[name](images.copy(), np.random.default_rng(1))
    assert (changed.shape, changed.dtype) == (images.shape, images.dtype)
