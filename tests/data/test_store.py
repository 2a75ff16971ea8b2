"""Installed data: old or new, never something between."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from metamirror.data.image_set import ImageClass
from metamirror.data.store import Store, data_home

fork = multiprocessing.get_context("fork")
SHAPE = (1, 4, 4)


def rows(values, left_out=()):
    for row, value in enumerate(values):
        yield row, None if row in left_out else np.full(SHAPE, value, np.uint8)


def install(store: Store, values, counts=(3, 2), left_out=()) -> int:
    classes, start = [], 0
    for i, count in enumerate(counts):
        classes.append(ImageClass(f"{i}", ("train", "test")[i % 2], start, count))
        start += count
    with store.locked("toy", wait=True):
        return store.install("toy", SHAPE, classes, rows(values, left_out), {"note": "here"})


def values_of(store: Store) -> list[int]:
    return store.open("toy").pixels[:, 0, 0, 0].tolist()


def test_what_is_installed_comes_back(tmp_path):
    store = Store(tmp_path / "new" / "home")
    assert install(store, range(5)) == 0
    images = store.open("toy")
    assert values_of(store) == [0, 1, 2, 3, 4]
    assert [(c.name, c.split, c.start, c.count) for c in images.classes] == [
        ("0", "train", 0, 3),
        ("1", "test", 3, 2),
    ]
    assert store.check("toy")["note"] == "here"
    with pytest.raises(ValueError, match="read-only"):
        images.pixels[0] = 1


@pytest.mark.parametrize("left_out", [{0}, {1}, {4}, {0, 2, 3}, {0, 1, 2}])
def test_rows_that_are_left_out_are_closed_up(left_out, tmp_path):
    store = Store(tmp_path)
    assert install(store, range(5), left_out=left_out) == len(left_out)
    assert values_of(store) == [v for v in range(5) if v not in left_out]
    images = store.open("toy")
    members = {"0": {0, 1, 2}, "1": {3, 4}}
    assert {c.name for c in images.classes} == {n for n, m in members.items() if m - left_out}
    for c in images.classes:
        found = images.pixels[c.start : c.start + c.count, 0, 0, 0].tolist()
        assert found == sorted(members[c.name] - left_out)
    store.check("toy")


def test_rows_may_come_in_any_order(tmp_path):
    store = Store(tmp_path)
    classes = [ImageClass("a", "train", 0, 4)]
    shuffled = [(row, np.full(SHAPE, row, np.uint8)) for row in (2, 0, 3, 1)]
    with store.locked("toy", wait=True):
        store.install("toy", SHAPE, classes, iter(shuffled), {})
    assert values_of(store) == [0, 1, 2, 3]


def test_a_failure_in_the_middle_leaves_the_old_state(tmp_path):
    store = Store(tmp_path)
    install(store, range(5))
    before = sorted(p.name for p in tmp_path.iterdir())

    def broken():
        yield 0, np.zeros(SHAPE, np.uint8)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), store.locked("toy", wait=True):
        store.install("toy", SHAPE, [ImageClass("a", "train", 0, 2)], broken(), {})
    assert values_of(store) == [0, 1, 2, 3, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_new_installation_replaces_the_old_one_and_its_array(tmp_path):
    store = Store(tmp_path)
    install(store, range(5))
    old = store.open("toy")
    install(store, range(10, 15))
    assert values_of(store) == [10, 11, 12, 13, 14]
    assert old.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4], "who has it open keeps it"
    assert len(list(tmp_path.glob("*.bytes"))) == 1


def test_leftovers_of_a_killed_installation_are_removed_by_the_next(tmp_path):
    store = Store(tmp_path)
    (tmp_path / ".toy.part").write_bytes(b"x" * 100)
    (tmp_path / "toy.0123456789abcdef.bytes").write_bytes(b"x" * 100)
    install(store, range(5))
    assert sorted(p.name for p in tmp_path.glob("*toy*.bytes")) == [store.facts("toy")["array"]]
    assert not list(tmp_path.glob("*.part"))


DAMAGE = {
    "a flipped byte": lambda root, array: array.write_bytes(b"\7" + array.read_bytes()[1:]),
    "a short array": lambda root, array: array.write_bytes(array.read_bytes()[:-1]),
    "a missing array": lambda root, array: array.unlink(),
    "an empty index": lambda root, array: (root / "toy.json").write_text(""),
    "an index of something else": lambda root, array: (root / "toy.json").write_text("[1]"),
    "an index with a huge shape": lambda root, array: change(root, shape=[10**9, 1, 4, 4]),
    "an index with a negative shape": lambda root, array: change(root, shape=[-5, 1, 4, -4]),
    "an index that climbs out": lambda root, array: change(root, array="../../etc/x.bytes"),
    "another format": lambda root, array: change(root, format=99),
    "classes beyond the array": lambda root, array: change(
        root, classes=[{"name": "a", "split": "train", "start": 0, "count": 6}]
    ),
    "a class twice": lambda root, array: change(
        root,
        classes=[
            {"name": "a", "split": "train", "start": 0, "count": 3},
            {"name": "a", "split": "test", "start": 3, "count": 2},
        ],
    ),
    "a class without a name": lambda root, array: change(
        root, classes=[{"name": None, "split": "train", "start": 0, "count": 5}]
    ),
    "half a picture": lambda root, array: change(
        root, classes=[{"name": "a", "split": "train", "start": 0.0, "count": 5}]
    ),
    "no count of what was left out": lambda root, array: change(root, left_out=None),
    "a number for a checksum": lambda root, array: change(root, sha256=7),
    "an index without end": lambda root, array: (root / "toy.json").write_text("[" * 100_000),
    "a class of no split": lambda root, array: change(
        root, classes=[{"name": "a", "split": "dev", "start": 0, "count": 5}]
    ),
}


def change(root: Path, **values) -> None:
    path = root / "toy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_found_and_named_and_adding_again_repairs_it(case, tmp_path):
    store = Store(tmp_path)
    install(store, range(5))
    DAMAGE[case](tmp_path, tmp_path / store.facts("toy")["array"])
    with pytest.raises(ValueError, match="add toy again"):
        store.check("toy")
    install(store, range(5))
    store.check("toy")
    assert values_of(store) == [0, 1, 2, 3, 4]


def test_two_processes_do_not_install_the_same_set_at_once(tmp_path):
    store, ready = Store(tmp_path), fork.Event()

    def hold() -> None:
        with store.locked("toy", wait=False):
            ready.set()
            time.sleep(60)

    other = fork.Process(target=hold)
    other.start()
    try:
        assert ready.wait(30)
        with (
            pytest.raises(ValueError, match="another process is adding toy"),
            store.locked("toy", wait=False),
        ):
            pass
        other.kill()
        other.join()
        with store.locked("toy", wait=False):
            pass
    finally:
        other.kill()
        other.join()


def test_names_of_data_sets_stay_inside_the_folder(tmp_path):
    for name in ("../x", "a/b", "", ".hidden", "a.b"):
        with pytest.raises(ValueError, match="no name of a data set"):
            Store(tmp_path).holds(name)


def test_the_folder_is_given_or_in_the_environment_or_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "env"))
    assert data_home() == tmp_path / "env"
    assert data_home(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("METAMIRROR_HOME")
    assert data_home().name == "metamirror"
