"""Hugging Face's data sets: by a double of their interface, and by the package where it is."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import metamirror as mm
from metamirror.testing import check_task_stream
from metamirror.testing.streams import same_tasks
from tests.refusals import assert_refused

CLASSES, EACH = 12, 8
Y = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES), EACH))
X = np.random.default_rng(2).normal(size=(len(Y), 5)).astype(np.float32)
PIXELS = np.random.default_rng(3).integers(0, 256, (len(Y), 9, 9, 3), dtype=np.uint8)


class Double:
    """As much of `datasets.Dataset` as is used here: columns, formats and rows by number."""

    def __init__(self, columns: dict[str, list], names: list[str] | None = None):
        self.columns, self.names = columns, names
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace() for name in columns}
        if names is not None:
            self.features["label"].names = names

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        if isinstance(rows, list):
            return {n: [values[row] for row in rows] for n, values in self.columns.items()}
        return {n: values[rows] for n, values in self.columns.items()}

    def select_columns(self, names: list[str]) -> Double:
        return Double({name: self.columns[name] for name in names})

    def select(self, rows) -> Double:
        return Double({n: [v[r] for r in rows] for n, v in self.columns.items()}, self.names)

    def with_format(self, _) -> Double:
        return self


def double(**more) -> Double:
    columns = {"embedding": X.tolist(), "label": Y.tolist(), **more}
    return Double(columns, [f"kind {c}" for c in range(CLASSES)])


def tasks(source, **options):
    return mm.tasks(source, **{"ways": 2, "shots": 1, "queries": 3, **options})


def test_columns_are_found_and_classes_have_their_names():
    stream = tasks(double(text=["a"] * len(Y)))
    check_task_stream(stream)
    assert same_tasks(stream[3], tasks((X, Y))[3])
    assert all(name.startswith("kind ") for name in stream.names(0, 0))


def test_columns_are_named():
    source = double(vector=(X + 1).tolist(), sort=(Y // 2).tolist())
    stream = tasks(source, columns=("vector", "sort"))
    assert same_tasks(stream[3], tasks((X + 1, Y // 2))[3])
    words = np.array(["train", "val", "test"])[Y % 3].tolist()
    given = tasks(double(fold=words), splits="fold", split="val")
    assert {int(c.name.split()[1]) % 3 for c in given.classes} == {1}
    assert same_tasks(given[0], tasks((X, Y), splits=words, split="val")[0])


def test_splits_of_a_dictionary_count_where_they_share_no_class(capsys):
    source = double()
    parts = {"train": Y < 6, "validation": (Y >= 6) & (Y < 9), "test": Y >= 9}
    apart = {name: source.select(np.flatnonzero(own)) for name, own in parts.items()}
    found = tasks(apart).images
    assert {s: len(found.of(s)) for s in ("train", "val", "test")} == {
        "train": 6,
        "val": 3,
        "test": 3,
    }
    for name, split in (("train", "train"), ("validation", "val"), ("test", "test")):
        own = {f"kind {c}" for c in np.unique(Y[parts[name]])}
        assert {c.name for c in found.of(split)} == own
    order = np.concatenate([np.flatnonzero(own) for own in parts.values()])
    assert np.array_equal(found.pixels[np.arange(len(Y))].astype(np.float32), X[order])
    assert capsys.readouterr().err == ""
    halves = {
        "train": source.select(range(0, len(Y), 2)),
        "test": source.select(range(1, len(Y), 2)),
    }
    mixed = tasks(halves).images
    assert "share classes; they are put together and split anew" in capsys.readouterr().err
    assert len(mixed.of("train")) == 8


def encoded(pixels: np.ndarray) -> dict:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return {"bytes": content.getvalue(), "path": None}


def test_images_are_decoded_here(tmp_path: Path):
    columns = {"image": [encoded(p) for p in PIXELS], "label": Y.tolist()}
    assert same_tasks(tasks(Double(columns))[1], tasks((PIXELS, Y))[1])
    file = tmp_path / "one.png"
    file.write_bytes(columns["image"][0]["bytes"])
    columns["image"][0] = {"bytes": None, "path": str(file)}
    assert same_tasks(tasks(Double(columns))[1], tasks((PIXELS, Y))[1])


REFUSED = {
    "no such column": (
        lambda: tasks(double(), columns=("a", "label")),
        "no column 'a'; it has embed",
    ),
    "no labels": (
        lambda: tasks(Double({"a": [1], "b": [2]})),
        r"columns a, b, and which holds the l",
    ),
    "no examples": (
        lambda: tasks(Double({"a": [1], "b": [2], "label": [3]})),
        r"columns a, b, and which holds the examples is not clear.*hf:PATH:x=COLUMN",
    ),
    "text": (lambda: tasks(Double({"text": ["a"], "label": [0]})), "x holds <U1; give numbers"),
    "no label": (
        lambda: tasks(Double(double().columns | {"label": [-1] * 96}, ["a"])),
        "holds -1, an",
    ),
    "elsewhere": (
        lambda: tasks(Double({"image": [{"bytes": None, "path": "http://a/b.png"}], "label": [0]})),
        r"example 0 is not in the data set but elsewhere \(http://a/b\.png\)",
    ),
    "nothing": (lambda: tasks(Double({"x": [], "label": []})), "is empty"),
    "no folder": (lambda: tasks("hf:/no/such"), "there is no folder /no/such"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named(mistake: str):
    assert_refused(*REFUSED[mistake])


def test_the_package_is_asked_for(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert_refused(lambda: tasks(f"hf:{tmp_path}"), r"pip install 'metamirror\[hf\]'")


@pytest.fixture(scope="module")
def datasets():
    """The package itself, an extra that takes 300 MB: the tests below are skipped without it."""
    return pytest.importorskip("datasets")


@pytest.fixture
def saved(datasets, tmp_path: Path) -> Path:
    kinds = datasets.Features(
        {
            "embedding": datasets.Sequence(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=[f"kind {c}" for c in range(CLASSES)]),
            "sort": datasets.Value("string"),
        }
    )
    columns = {"embedding": X.tolist(), "label": Y.tolist(), "sort": [f"s{c // 2}" for c in Y]}
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_data_set_gives_the_tasks_of_its_arrays(datasets, saved: Path):
    for source in (f"hf:{saved}", datasets.load_from_disk(str(saved))):
        stream = tasks(source)
        check_task_stream(stream)
        assert same_tasks(stream[3], tasks((X, Y))[3])
        assert stream.names(0, 0)[0].startswith("kind ")
    named = tasks(f"hf:{saved}:x=embedding:y=sort:split_seed=2")
    assert same_tasks(named[3], tasks((X, [f"s{c // 2}" for c in Y]), split_seed=2)[3])
    assert named.identity == tasks(f"hf:{saved}:x=embedding:y=sort:split_seed=2").identity


def test_saved_images_are_those_that_were_saved(datasets, tmp_path: Path):
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [Image.fromarray(p) for p in PIXELS], "label": Y.tolist()}
    source = datasets.Dataset.from_dict(columns, features=kinds)
    source.save_to_disk(tmp_path / "images")
    for given in (source, f"hf:{tmp_path / 'images'}"):
        assert same_tasks(tasks(given)[1], tasks((PIXELS, Y))[1])


def test_what_is_no_saved_data_set_is_named(datasets, saved: Path):
    (next(saved.glob("*.arrow"))).write_bytes(b"nonsense")
    assert_refused(lambda: tasks(f"hf:{saved}"), "holds no data set that save_to_disk wrote")
    assert_refused(lambda: tasks(f"hf:{saved.parent}"), "holds no data set that save_to_disk wrote")
