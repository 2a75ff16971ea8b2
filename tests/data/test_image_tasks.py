"""Classification tasks by address: what is drawn, how evenly, and what never happens."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from metamirror.core.tasks import Task
from metamirror.data.image_set import ImageClass, ImageSet, with_quarter_turns
from metamirror.data.image_tasks import ImageTasks, augmentation
from metamirror.testing.streams import same_tasks


def image_set(
    classes: int = 12, count: int = 8, splits=("train",), turns: bool = False
) -> ImageSet:
    """Each picture carries its row number in its pixels; its bright corner tells its turn."""
    rows = classes * count
    pixels = np.zeros((rows, 1, 4, 4), np.uint8)
    pixels[:, 0, 1, 1], pixels[:, 0, 1, 2] = np.arange(rows) // 256, np.arange(rows) % 256
    pixels[:, 0, 0, 0] = 255
    made = [
        ImageClass(f"class {i}", splits[i % len(splits)], i * count, count) for i in range(classes)
    ]
    return ImageSet("numbers", pixels, with_quarter_turns(made) if turns else tuple(made))


def stream(images: ImageSet | None = None, split: str = "train", **options) -> ImageTasks:
    values = {"ways": 3, "shots": 2, "queries": 4, "seed": 0, "batch": 5, **options}
    return ImageTasks(images or image_set(), split, **values)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """The row numbers that the pictures carry, whichever way they are turned."""
    values = (x * 255).round().long()[..., 0, 1:3, 1:3].flatten(-2)
    high, low = values[..., 0], values[..., 1]
    return high * 256 + low


def test_shapes_types_and_range():
    support, query = stream(ways=3, shots=2, queries=4, batch=5)[0]
    assert support.x.shape == (5, 6, 1, 4, 4)
    assert query.x.shape == (5, 12, 1, 4, 4)
    assert support.y.shape == (5, 6)
    assert query.y.shape == (5, 12)
    assert support.x.dtype == torch.float32
    assert support.y.dtype == torch.int64
    assert support.x.min() == 0
    assert support.x.max() == 1


@settings(max_examples=60, deadline=None)
@given(
    ways=st.integers(2, 12),
    shots=st.integers(1, 5),
    queries=st.integers(1, 3),
    step=st.integers(0, 2**62),
    seed=st.integers(0, 2**62),
)
def test_no_example_is_drawn_twice_and_labels_mean_classes(ways, shots, queries, step, seed):
    tasks = stream(ways=ways, shots=shots, queries=queries, seed=seed, batch=2)
    support, query = tasks[step]
    for i in range(2):
        rows = torch.cat([rows_of(support.x[i]), rows_of(query.x[i])])
        labels = torch.cat([support.y[i], query.y[i]])
        assert len(rows.unique()) == ways * (shots + queries)
        classes = rows // 8
        assert Counter(labels.tolist()) == dict.fromkeys(range(ways), shots + queries)
        for label in range(ways):
            (name,) = {f"class {c}" for c in classes[labels == label].tolist()}
            assert tasks.names(step, i)[label] == name


def test_the_same_address_is_the_same_task_whoever_asks():
    everyone = stream(batch=5)
    for index in range(5):
        alone = stream(batch=1).task(7, index)
        share = everyone.stack(7, [index])
        assert same_tasks(Task(*(type(b)(b.x[index], b.y[index]) for b in everyone[7])), alone)
        assert torch.equal(share.support.x[0], alone.support.x)


def test_other_seeds_steps_and_splits_are_other_tasks():
    images = image_set(24, splits=("train", "val"))
    first = stream(images)[0]
    assert not same_tasks(first, stream(images, seed=1)[0])
    assert not same_tasks(first, stream(images)[1])
    assert not same_tasks(first, stream(images, "val")[0])


def test_splits_never_meet():
    images = image_set(24, splits=("train", "val", "test"))
    seen = {}
    for split in ("train", "val", "test"):
        rows = [rows_of(b.x) for s in range(60) for b in stream(images, split)[s]]
        seen[split] = set(torch.cat([r.flatten() for r in rows]).tolist())
    assert not seen["train"] & seen["val"]
    assert not seen["train"] & seen["test"]
    assert not seen["val"] & seen["test"]
    assert sum(map(len, seen.values())) == 24 * 8


def test_classes_labels_and_examples_are_uniform():
    tasks, steps = stream(batch=20), 200
    drawn = [tasks.draw(step, range(20)) for step in range(steps)]
    classes = np.concatenate([c for c, _ in drawn])
    rows = np.concatenate([r for _, r in drawn]) % 8
    for label in range(3):
        counts = np.bincount(classes[:, label], minlength=12)
        assert stats.chisquare(counts).pvalue > 1e-4
    for place in range(6):
        counts = np.bincount(rows[:, :, place].ravel(), minlength=8)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_unequal_classes_are_drawn_evenly_within_each():
    pixels = np.zeros((40, 1, 4, 4), np.uint8)
    made = (ImageClass("few", "train", 0, 7), ImageClass("many", "train", 7, 33))
    tasks = stream(ImageSet("two", pixels, made), ways=2, shots=1, queries=6, batch=50)
    classes, rows = map(
        np.concatenate, zip(*(tasks.draw(s, range(50)) for s in range(100)), strict=True)
    )
    few, many = rows[classes == 0], rows[classes == 1]
    assert set(few.ravel()) == set(range(7))
    assert set(many.ravel()) == set(range(7, 40))
    assert stats.chisquare(np.bincount(many[:, 0] - 7, minlength=33)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(few[:, 6], minlength=7)).pvalue > 1e-4


def test_quarter_turns_are_classes_of_their_own():
    images = image_set(3, turns=True)
    assert [c.name for c in images.classes][:4] == [
        "class 0",
        "class 0 90°",
        "class 0 180°",
        "class 0 270°",
    ]
    tasks = stream(images, ways=12, shots=1, queries=1, batch=1)
    support = tasks.task(0, 0).support
    corners = {0: (0, 0), 1: (3, 0), 2: (3, 3), 3: (0, 3)}
    for label, name in enumerate(tasks.names(0, 0)):
        turns = int(name.split()[2][:-1]) // 90 if "°" in name else 0
        picture = support.x[label, 0]
        assert picture[corners[turns]] == 1, name
        assert picture.max() == 1
        upright = torch.rot90(picture, -turns)
        assert upright[0, 0] == 1


def test_nothing_is_augmented_by_default_and_augmentation_has_an_address():
    plain = stream(batch=2)
    assert plain.augment is None
    both = [stream(batch=2, augment=augmentation("flip,shift")) for _ in range(2)]
    assert same_tasks(both[0][3], both[1][3])
    assert not same_tasks(both[0][3], plain[3])
    assert torch.equal(both[0][3].support.y, plain[3].support.y)
    alone = stream(batch=1, augment=augmentation("flip,shift")).task(3, 1)
    assert torch.equal(both[0][3].query.x[1], alone.query.x)


def test_flipping_mirrors_about_half_of_the_pictures():
    pictures = np.arange(400 * 4, dtype=np.uint8).reshape(400, 1, 2, 2)
    changed = augmentation("flip")(pictures.copy(), np.random.default_rng(0))
    mirrored = (changed == pictures[..., ::-1]).all((1, 2, 3))
    kept = (changed == pictures).all((1, 2, 3))
    assert (mirrored | kept).all()
    assert 140 < mirrored.sum() < 260


def test_augmentation_of_ones_own():
    dark = stream(augment=lambda pictures, random: pictures // 2)[0]
    assert dark.support.x.max() == 127 / 255
    with pytest.raises(ValueError, match="keep type and shape"):
        stream(augment=lambda pictures, random: pictures[:, :, :2])[0]
    with pytest.raises(ValueError, match=r"'spin'.*flip"):
        augmentation("flip,spin")


WRONG = {
    "too many ways": ({"ways": 13}, "ways is 13.*12 classes"),
    "one way": ({"ways": 1}, "at least 2"),
    "too many pictures": ({"shots": 5}, "'class 0'.*8 examples.*5 \\+ 4"),
    "no queries": ({"queries": 0}, "queries is 0"),
    "an empty split": ({"split": "val"}, "val split of numbers has 0 classes"),
    "no such split": ({"split": "dev"}, "'dev'"),
}


def test_half_a_step_is_no_address():
    with pytest.raises(ValueError, match=r"1\.5.*whole number"):
        stream()[1.5]


def test_tasks_are_drawn_faster_than_any_model_can_learn_them():
    """The bar is 2,000 a second; processor time, so that a busy machine does not decide it."""
    images = image_set(4000, 20)
    images = ImageSet("large", np.zeros((80_000, 1, 28, 28), np.uint8), images.classes)
    tasks = stream(images, ways=5, shots=1, queries=15, batch=4)
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for step in range(100):
            tasks[step]
        best = min(best, time.process_time() - began)
    assert 400 / best > 2000


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_drawn_is_refused_at_once(case: str):
    options, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        stream(**options)


def test_an_empty_share_is_an_empty_stack():
    support, query = stream().stack(0, [])
    assert support.x.shape[:2] == (0, 6)
    assert query.y.shape == (0, 12)
