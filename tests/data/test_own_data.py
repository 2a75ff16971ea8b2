"""Tasks from what people have: arrays, data sets, iterators, objects; fixed or drawn sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import metamirror as mm
from metamirror.core.tasks import split_tasks
from metamirror.data.addressing import task_generator
from metamirror.data.path_spec import absolute
from metamirror.testing import check_task_stream
from metamirror.testing.streams import same_tasks
from tests.refusals import assert_refused

CLASSES, EACH = 30, 12
ORDER = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES), EACH))
"""The class of each row, in no order."""
X = np.stack([ORDER, np.arange(len(ORDER)), np.zeros(len(ORDER))], 1)
"""Each example says its class and its row."""


def tasks(source=(X, ORDER), **options):
    return mm.tasks(source, **{"ways": 3, "shots": 2, "queries": 4, **options})


class Pairs(Dataset):
    """A map-style data set that counts how often it is asked."""

    def __init__(self, x, y):
        self.x, self.y, self.asked = x, y, 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        self.asked += 1
        return self.x[row], self.y[row]


WORDS = np.array([f"class {c:02}" for c in ORDER])
SOURCES = {
    "arrays": (X, ORDER),
    "lists": (X.tolist(), ORDER.tolist()),
    "tensors": (torch.from_numpy(X), torch.from_numpy(ORDER)),
    "half precision": (torch.from_numpy(X).bfloat16(), ORDER),
    "words as labels": (X, WORDS),
    "objects as words": (X, WORDS.astype(object)),
    "a data set": Pairs(X, ORDER),
    "tensors in a data set": TensorDataset(torch.from_numpy(X), torch.from_numpy(ORDER)),
    "words in a data set": Pairs(torch.from_numpy(X), WORDS.tolist()),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("sizes", [{}, {"ways": (2, 5), "shots": "1-3"}], ids=str)
def test_every_source_gives_the_same_tasks(kind: str, sizes: dict):
    stream = tasks(SOURCES[kind], **sizes)
    check_task_stream(stream)
    for step in (0, 7):
        for task, other in zip(
            *map(split_tasks, (stream[step], tasks(**sizes)[step])), strict=True
        ):
            if kind != "half precision":
                assert same_tasks(task, other)
            for x, y in task:
                assert x.dtype == torch.float32
                for label in range(int(y.max()) + 1):
                    assert len(set(x[y == label, 0].tolist())) == 1
            rows = torch.cat([task.support.x, task.query.x])[:, 1]
            assert len(rows.unique()) == len(rows) or kind == "half precision"


@pytest.mark.parametrize("sizes", [{}, {"ways": (2, 5), "shots": (1, 3)}], ids=str)
def test_a_task_does_not_depend_on_those_drawn_with_it(sizes: dict):
    many = tasks(batch=6, **sizes)
    for index, task in enumerate(split_tasks(many[3])):
        assert same_tasks(task, tasks(batch=1, **sizes).task(3, index))
        assert same_tasks(task, split_tasks(many.stack(3, [5, index]))[1])


@settings(max_examples=40, deadline=None)
@given(
    ways=st.tuples(st.integers(2, 9), st.integers(0, 9)),
    shots=st.tuples(st.integers(1, 4), st.integers(0, 4)),
    step=st.integers(0, 2**62),
)
def test_a_drawn_size_gives_the_task_of_that_size(ways, shots, step):
    ranges = {"ways": (ways[0], sum(ways)), "shots": f"{shots[0]}-{sum(shots)}"}
    stream = tasks(batch=3, queries=4, **ranges)
    for index, task in enumerate(split_tasks(stream[step])):
        size = stream.sizes(step, index)
        assert ways[0] <= size[0] <= sum(ways)
        assert shots[0] <= size[1] <= sum(shots)
        assert len(task.support.y) == size[0] * size[1]
        assert len(task.query.y) == size[0] * 4
        assert same_tasks(task, tasks(ways=size[0], shots=size[1]).task(step, index))


def test_sizes_are_drawn_uniformly_and_their_ends_occur():
    stream = tasks(ways=(2, 6), shots=(1, 3), batch=20)
    sizes = [stream.sizes(step, index) for step in range(100) for index in range(20)]
    for values in zip(*sizes, strict=True):
        counts = Counter(values)
        assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    assert {ways for ways, _ in sizes} == {2, 3, 4, 5, 6}
    assert {shots for _, shots in sizes} == {1, 2, 3}
    pairs = Counter(sizes)
    assert stats.chisquare([pairs[w, s] for w in range(2, 7) for s in (1, 2, 3)]).pvalue > 1e-4
    assert stream.chance == pytest.approx(np.mean([1 / w for w in range(2, 7)]))
    assert stream.outputs == 6


def test_a_range_of_one_number_is_that_number():
    stream = tasks(ways=(3, 3), shots="2-2")
    assert isinstance(stream[0], mm.Task)
    assert same_tasks(stream[0], tasks()[0])


def classes_of(stream) -> set[int]:
    found = [task for step in range(40) for task in split_tasks(stream[step])]
    return {int(c) for task in found for batch in task for c in batch.x[:, 0].tolist()}


GIVEN = np.array(["train", "val", "test"])
SPLITS = {
    "drawn": {},
    "drawn by another seed": {"split_seed": 3},
    "a word for each example": {"splits": GIVEN[ORDER % 3]},
    "a word for each class": {"splits": GIVEN[np.arange(CLASSES) % 3].tolist()},
    "a mapping": {"splits": {c: GIVEN[c % 3].item() for c in range(CLASSES)}},
    "other words": {"splits": np.array(["Train", "validation", "test"])[ORDER % 3]},
}


@pytest.mark.parametrize("kind", SPLITS)
def test_no_class_is_in_two_splits(kind: str):
    parts = {split: classes_of(tasks(split=split, **SPLITS[kind])) for split in GIVEN.tolist()}
    assert sorted(itertools.chain(*parts.values())) == list(range(CLASSES))
    if kind.startswith("drawn"):
        assert [len(part) for part in parts.values()] == [18, 6, 6]
    else:
        assert all({c % 3 for c in part} == {i} for i, part in enumerate(parts.values()))


def test_a_split_has_a_seed_and_one_word_is_for_all():
    first = classes_of(tasks())
    assert first == classes_of(tasks())
    assert any(classes_of(tasks(split_seed=seed)) != first for seed in (1, 2))
    assert classes_of(tasks(splits="train")) == set(range(CLASSES))


def test_the_checksum_sees_labels_splits_and_examples():
    seen = {
        tasks().identity,
        tasks(split_seed=1).identity,
        tasks((X + 1, ORDER)).identity,
        tasks((X, np.roll(ORDER, 1))).identity,
    }
    assert len(seen) == 4
    assert tasks().identity == tasks(ways=2).identity


def test_bytes_are_images_and_other_integers_tokens():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (len(ORDER), 10, 12, 3), dtype=np.uint8)
    assert tasks((pixels, ORDER)).example_shape == (3, 10, 12)
    assert tasks((pixels[..., 0], ORDER)).example_shape == (1, 10, 12)
    first, last = (tasks((p, ORDER))[0] for p in (np.moveaxis(pixels, 3, 1), pixels))
    assert same_tasks(first, last)
    assert first.support.x.dtype == torch.float32
    assert 0 <= first.support.x.min() < 0.1
    assert 0.9 < first.support.x.max() <= 1
    images = Pairs([Image.fromarray(p) for p in pixels], ORDER)
    assert same_tasks(tasks(images)[0], first)
    tokens = random.integers(0, 50_000, (len(ORDER), 7), dtype=np.int32)
    found = tasks((tokens, ORDER))[0].support.x
    assert found.dtype == torch.int64
    assert found.max() > 255
    assert tasks((tokens > 25_000, ORDER))[0].support.x.dtype == torch.float32


def test_images_in_arrays_are_augmented_and_vectors_by_a_function():
    pixels = np.random.default_rng(0).integers(0, 256, (len(ORDER), 1, 8, 8), dtype=np.uint8)
    plain, flipped = (tasks((pixels, ORDER), augment=how)[0] for how in (None, "flip"))
    assert not same_tasks(plain, flipped)
    noisy = tasks(augment=lambda x, random: x + random.normal(size=x.shape))
    check_task_stream(noisy)
    assert not same_tasks(noisy[0], tasks()[0])


def test_labels_at_hand_spare_reading_every_example():
    slow, quick = Pairs(X, ORDER), Pairs(X, ORDER)
    quick.targets = ORDER.tolist()
    assert same_tasks(tasks(slow)[0], tasks(quick)[0])
    assert quick.asked < len(ORDER) < slow.asked
    quick.target_transform = lambda label: label // 2
    assert tasks(quick).identity == tasks(slow).identity  # by the items, not by targets


# Iterators and objects


def sine(step: int, index: int, shots: int = 5) -> mm.Task:
    random = task_generator(0, "train", step, index)
    x = torch.from_numpy(random.uniform(-5, 5, (shots + 3, 1))).float()
    y = torch.sin(x - random.uniform(0, 3))
    return mm.Task(mm.Batch(x[:shots], y[:shots]), mm.Batch(x[shots:], y[shots:]))


class Sines:
    """An object with addresses, and as many shots as the index says."""

    def task(self, step: int, index: int) -> mm.Task:
        return sine(step, index, 2 + index)


class Equal:
    ragged = False

    def task(self, step: int, index: int) -> tuple:
        return tuple((x.numpy(), y.tolist()) for x, y in sine(step, index))


def test_an_object_with_addresses_is_a_stream():
    stream = mm.tasks(Sines(), batch=3)
    check_task_stream(stream)
    assert [len(task.support.x) for task in stream[4]] == [2, 3, 4]
    assert (stream.outputs, stream.example_shape, stream.ragged, stream.exact) == (
        1,
        (1,),
        True,
        True,
    )
    equal = mm.tasks(Equal(), batch=2)
    check_task_stream(equal)
    assert equal[0].support.x.shape == (2, 5, 1)
    assert not equal.ragged
    assert mm.tasks(equal) is equal


def test_an_iterator_gives_each_task_once_and_says_so(capsys):
    stream = mm.tasks((sine(step, 0) for step in range(12)), batch=2)
    assert "exact only if the iterator repeats itself" in capsys.readouterr().err
    assert not stream.exact
    for step in (0, 0, 1, 3):
        for index, task in enumerate(split_tasks(stream[step])):
            assert same_tasks(task, sine(2 * step + index, 0))
    with pytest.raises(ValueError, match=r"task 0 of the iterator has passed.*validation"):
        stream.task(0, 0)
    with pytest.raises(ValueError, match="ended after 12 tasks, and task 12 was asked for"):
        stream.task(6, 0)
    assert capsys.readouterr().err == ""


def classified(ways: int) -> mm.Task:
    x, y = torch.randn(2 * ways, 3), torch.arange(ways).repeat(2)
    return mm.Task(mm.Batch(x, y), mm.Batch(x + 1, y))


def test_ways_of_ones_own_tasks_are_read_from_the_labels(capsys):
    stream = mm.tasks(map(classified, itertools.repeat(4)), batch=2)
    assert (stream.outputs, stream.shots, stream.chance) == (4, 2, 0.25)
    learner = mm.make_learner("maml", mm.models.MLP(3, stream.outputs), steps=1)
    assert torch.isfinite(learner.meta_loss(stream[0]))


# Files


def write(path: Path, **arrays) -> str:
    np.savez(path, **arrays)
    return f"arrays:{path}"


def test_a_file_gives_the_tasks_of_its_arrays(tmp_path: Path):
    spec = write(tmp_path / "mine.npz", x=X, y=ORDER)
    stream = tasks(spec)
    assert same_tasks(stream[5], tasks()[5])
    assert isinstance(stream.images.pixels.base.base, np.memmap)
    np.savez_compressed(tmp_path / "packed.npz", x=X, y=WORDS)
    assert same_tasks(tasks(f"arrays:{tmp_path / 'packed.npz'}")[5], tasks()[5])
    given_split = write(
        tmp_path / "split.npz", x=np.asfortranarray(X), y=ORDER, split=GIVEN[ORDER % 3]
    )
    assert classes_of(tasks(given_split, split="val")) == set(range(1, CLASSES, 3))
    seeded = classes_of(tasks(f"{spec}:split_seed=3"))
    assert seeded == classes_of(tasks(split_seed=3))
    assert stream.identity == tasks(spec).identity
    changed = X.copy()
    changed[1, 2] += 1e-9  # a row that no sample has
    assert tasks(write(tmp_path / "mine.npz", x=changed, y=ORDER)).identity != stream.identity


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("arrays:a.npz:split_seed=2") == f"arrays:{tmp_path}/a.npz:split_seed=2"
    assert absolute("hf:a:y=kind:x=vector") == f"hf:{tmp_path}/a:y=kind:x=vector"
    assert absolute("folder:a:b:split_seed=0") == f"folder:{tmp_path}/a:b"
    assert absolute("omniglot:turns=false") == "omniglot:turns=false"


def a_file(content: bytes):
    def make(path: Path) -> str:
        path.write_bytes(content)
        return f"arrays:{path}"

    return make


FILES = {
    "no file": (lambda path: f"arrays:{path}", "there is no file .*own.npz"),
    "no path": (lambda path: "arrays:", "names no file: write arrays:PATH"),
    "no zip": (a_file(b"PK nonsense"), "own.npz is damaged or not what its name says"),
    "empty": (a_file(b""), "own.npz is damaged"),
    "no x": (lambda p: write(p, z=X, y=ORDER), "holds no array called x, but z, y"),
    "no y": (lambda p: write(p, x=X), "holds no array called y, but x"),
    "objects": (
        lambda p: write(p, x=X, y=np.array([{}] * len(X), dtype=object)),
        r"array y of .*own\.npz holds Python objects, which are not read",
    ),
    "another number of labels": (
        lambda p: write(p, x=X, y=ORDER[:5]),
        r"y has shape \(5,\) for 360 examples",
    ),
    "no examples": (lambda p: write(p, x=X[:0], y=ORDER[:0]), r"x has shape \(0, 3\)"),
    "one axis": (lambda p: write(p, x=X[:, 0], y=ORDER), r"x has shape \(360,\)"),
    "text": (lambda p: write(p, x=WORDS[:, None], y=ORDER), "x holds <U8; give numbers"),
    "a bad seed": (
        lambda p: write(p, x=X, y=ORDER) + ":split_seed=x",
        "split_seed is 'x'; give a whole number",
    ),
    "a bad split": (
        lambda p: write(p, x=X, y=ORDER, split=np.where(ORDER % 2, "train", "dev")),
        "splits holds 'dev'; choose from train, val, test",
    ),
    "a class in two splits": (
        lambda p: write(p, x=X, y=ORDER, split=np.where(np.arange(len(X)) % 2, "train", "test")),
        "class 0 is in test and in train: a class belongs to one split",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_named_in_one_line(case: str, tmp_path: Path):
    make, words = FILES[case]
    spec = make(tmp_path / "own.npz")
    with pytest.raises(ValueError, match=words) as caught:
        tasks(spec)
    assert "\n" not in str(caught.value)


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([])


REFUSED = {
    "no classes left for val": (lambda: tasks(splits="train", split="val"), "has 0 classes"),
    "too many ways": (lambda: tasks(ways=(5, 20)), r"ways is \(5, 20\), but the train split .* 18"),
    "too many shots": (lambda: tasks(shots="1-9"), r"12 examples, but shots \+ queries is 9 \+ 4"),
    "one way at least": (lambda: tasks(ways=(1, 5)), r"ways is \(1, 5\); a task needs at least 2"),
    "ends in the wrong order": (lambda: tasks(ways="9-5"), "ways is '9-5'.*from low to high"),
    "no range": (lambda: tasks(ways="many"), "ways is 'many'; it must be at least 1"),
    "three ends": (lambda: tasks(ways=(1, 2, 3)), r"ways is \(1, 2, 3\)"),
    "half a class": (lambda: tasks(ways=2.5), r"ways is 2\.5.*whole number"),
    "a range for curves": (
        lambda: mm.tasks("sinusoid", shots=(1, 5)),
        r"shots is \(1, 5\), a range, which needs classes",
    ),
    "real labels": (lambda: tasks((X, ORDER / 2)), "y holds float64; labels are whole numbers"),
    "ragged rows": (lambda: tasks(([[1], [1, 2]], [0, 1])), "x makes no array.*pad or crop"),
    "two classes": (lambda: tasks((X, ORDER % 2)), "has 2 classes; train, val and test need one"),
    "examples that differ": (
        lambda: tasks(Pairs([np.zeros(3 + i % 2) for i in range(360)], ORDER))[0],
        r"is float64 \(4,\), and the first is float64 \(3,\); all must be alike",
    ),
    "items that are no pairs": (
        lambda: tasks([[1, 2, 3]] * 9),
        r"item 0 of list is not \(x, label",
    ),
    "no items": (lambda: tasks([]), "list is empty"),
    "a stream of examples": (lambda: tasks(Streamed()), "no tasks can be made of Streamed: give a"),
    "a number": (lambda: tasks(3), "no tasks can be made of int"),
    "columns of arrays": (lambda: tasks(columns=("a", "b")), "it is for Hugging Face's data sets"),
    "a size for arrays": (lambda: tasks(image_size=32), "it is for data sets that have a name"),
    "splits for a name": (
        lambda: mm.tasks("glyphs", split_seed=1),
        "splits, split_seed and columns are for data that are given themselves",
    ),
    "a missing label": (lambda: tasks(splits={0: "train"}), "splits has no entry for the class 1"),
    "too few words": (lambda: tasks(splits=["train"] * 7), r"splits has shape \(7,\)"),
    "no task": (lambda: mm.tasks(iter([3])), "task 0 of the iterator is no task"),
    "an iterator without tasks": (lambda: mm.tasks(iter([])), "ended after 0 tasks"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named(mistake: str):
    assert_refused(*REFUSED[mistake])
