"""The user's own pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data import open_images
from tests.data import sources

pytestmark = pytest.mark.usefixtures("store")


def pets(root: Path, classes: int = 10, each: int = 6) -> Path:
    """Pictures of all kinds and sizes."""
    kinds = ("png", "jpeg", "webp", "bmp")
    suffix = {"jpeg": "jpg"}
    files = {
        f"pet {c}/{i}.{suffix.get(kinds[i % 4], kinds[i % 4])}": sources.picture(
            20 * c + i, 30 + 11 * i, kinds[i % 4]
        )
        for c in range(classes)
        for i in range(each)
    }
    return sources.write(root, files | {"notes.txt": b"mine", "pet 0/list.csv": b""})


def test_sub_folders_are_classes_and_pictures_are_resized(tmp_path):
    folder = pets(tmp_path / "pets")
    images = open_images(f"folder:{folder}", image_size=32)
    assert images.pixels.shape == (60, 3, 32, 32)
    assert {c.count for c in images.classes} == {6}
    assert {s: len(images.of(s)) for s in ("train", "val", "test")} == {
        "train": 6,
        "val": 2,
        "test": 2,
    }
    for c in images.classes:
        number = int(c.name.split()[1])
        found = images.pixels[c.start : c.start + 6, :, 16, 16].astype(int)
        for i, (red, green, blue) in enumerate(found):
            value = 20 * number + i
            assert abs(red - value) + abs(green - 255 + value) + abs(blue - value // 2) < 12
    task = mm.tasks(f"folder:{folder}", ways=5, shots=1, queries=3, image_size=32)[0]
    assert task.support.x.shape == (4, 5, 3, 32, 32)


def test_the_split_is_seeded(tmp_path):
    folder = pets(tmp_path / "pets")

    def split(spec: str) -> dict[str, str]:
        return {c.name: c.split for c in open_images(spec, image_size=16).classes}

    first = split(f"folder:{folder}")
    assert first == split(f"folder:{folder}")
    others = [split(f"folder:{folder}:split_seed={seed}") for seed in (1, 2, 3)]
    assert any(other != first for other in others)
    for other in [first, *others]:
        assert sorted(other.values()) == ["test"] * 2 + ["train"] * 6 + ["val"] * 2


@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_sub_folders_may_be_the_split(word, tmp_path):
    folder = sources.write(tmp_path / "x", sources.folders(("train", word, "test")))
    images = open_images(f"folder:{folder}", image_size=16)
    assert {s: len(images.of(s)) for s in sources.SPLITS} == sources.SPLITS


def test_grey_pictures_stay_grey_and_one_coloured_makes_all_coloured(tmp_path):
    files = {
        f"c{c}/{i}.png": sources.picture(9 * c + i, mode="L") for c in range(3) for i in range(2)
    }
    folder = sources.write(tmp_path / "x", files)
    assert open_images(f"folder:{folder}", image_size=16).pixels.shape == (6, 1, 16, 16)
    sources.write(folder, {"c0/colour.png": sources.picture(7)})
    images = open_images(f"folder:{folder}", image_size=16)
    assert images.pixels.shape == (7, 3, 16, 16)


def test_it_is_converted_once_and_again_when_the_folder_changes(tmp_path, store):
    folder = pets(tmp_path / "pets", classes=3)
    open_images(f"folder:{folder}", image_size=16)
    (name,) = store.names()
    made = (store.root / store.facts(name)["array"]).stat().st_mtime_ns
    again = open_images(f"folder:{folder}", image_size=16)
    assert (store.root / store.facts(name)["array"]).stat().st_mtime_ns == made
    assert len(again.pixels) == 18
    (folder / "pet 1" / "0.png").unlink()
    assert len(open_images(f"folder:{folder}", image_size=16).pixels) == 17
    assert store.names() == [name]


def test_a_picture_that_cannot_be_read_is_named_or_skipped(tmp_path, store, capsys):
    folder = pets(tmp_path / "pets", classes=3)
    (folder / "pet 1" / "0.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pet 1/0\.png.*--skip-bad"):
        open_images(f"folder:{folder}")
    assert main(["data", "add", f"folder:{folder}", "--skip-bad"]) == 0
    captured = capsys.readouterr()
    assert "3 classes (1/1/1 for train/val/test) x 5 to 6 images = 17" in captured.out
    assert "1 left out" in captured.out
    assert main(["data", "check", f"folder:{folder}"]) == 0
    images = open_images(f"folder:{folder}")
    assert sorted(c.count for c in images.classes) == [5, 6, 6]


WRONG = {
    "no path": ("folder:", "names no folder"),
    "no such folder": ("folder:/nowhere/at/all", "/nowhere/at/all"),
    "too few classes": ("folder:{tmp}/two", "2 sub-folders"),
    "nothing in it": ("folder:{tmp}/empty", "empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_folder_of_pictures_is_named(case, tmp_path):
    spec, message = WRONG[case]
    pets(tmp_path / "two", classes=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        open_images(spec.format(tmp=tmp_path))


SMALL = "--ways 2 --queries 2 --steps 1 --iterations 2 --width 4 --image-size 16 --val-tasks 2"


def train(folder: Path, *words: str) -> int:
    return main(["train", "--method", "maml", "--data", f"folder:{folder}", *SMALL.split(), *words])


def test_training_on_ones_own_pictures(tmp_path):
    run = str(tmp_path / "run")
    assert train(pets(tmp_path / "pets", classes=15), "--out", run) == 0
    assert main(["evaluate", run, "--tasks", "3", "--json"]) == 0


def test_pictures_are_not_written_to(tmp_path):
    folder = pets(tmp_path / "pets", classes=3)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    open_images(f"folder:{folder}")
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert isinstance(open_images(f"folder:{folder}").pixels, np.memmap)


def test_the_words_for_splits_may_be_capitals(tmp_path):
    folder = sources.write(tmp_path / "x", sources.folders(("Train", "VAL", "Test")))
    images = open_images(f"folder:{folder}", image_size=16)
    assert {s: len(images.of(s)) for s in sources.SPLITS} == sources.SPLITS


def test_an_archive_beside_the_classes_is_not_looked_into(tmp_path, capsys):
    folder = pets(tmp_path / "pets", classes=4)
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.png")}
    sources.write(folder / "backup.zip", files)
    images = open_images(f"folder:{folder}", image_size=16)
    assert {c.name for c in images.classes} == {f"pet {i}" for i in range(4)}
    assert "backup.zip" in capsys.readouterr().err, "what is not used is mentioned"


def test_one_file_under_two_names_is_refused(tmp_path):
    folder = pets(tmp_path / "pets", classes=4)
    (folder / "pet 9").symlink_to(folder / "pet 0")
    with pytest.raises(ValueError, match="one file, by a link"):
        open_images(f"folder:{folder}", image_size=16)


def test_bad_pictures_among_grey_ones_can_be_skipped(tmp_path, capsys):
    files = {f"c{c}/{i}.png": sources.picture(i, mode="L") for c in range(3) for i in range(3)}
    folder = sources.write(tmp_path / "x", files | {"c0/0.png": b""})
    with pytest.raises(ValueError, match=r"c0/0\.png.*--skip-bad"):
        open_images(f"folder:{folder}", image_size=16)
    words = ["data", "add", f"folder:{folder}", "--skip-bad", "--image-size", "16"]
    assert main(words) == 0
    assert "= 8, 16x16x1, 1 left out" in capsys.readouterr().out
    assert open_images(f"folder:{folder}", image_size=16).pixels.shape == (8, 1, 16, 16)


def test_a_relative_path_and_an_absolute_one_are_the_same_pictures(tmp_path, monkeypatch, store):
    folder = pets(tmp_path / "pets", classes=3)
    open_images(f"folder:{folder}", image_size=16)
    made = [(p, p.stat().st_mtime_ns) for p in sorted(store.root.glob("*.bytes"))]
    monkeypatch.chdir(tmp_path)
    open_images("folder:pets", image_size=16)
    open_images("folder:./pets/", image_size=16)
    assert [(p, p.stat().st_mtime_ns) for p in sorted(store.root.glob("*.bytes"))] == made


def test_a_run_finds_its_folder_from_anywhere(tmp_path, monkeypatch):
    pets(tmp_path / "pets", classes=15)
    monkeypatch.chdir(tmp_path)
    assert train(Path("pets")) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "pets-maml-1shot-seed0"
    monkeypatch.chdir("/")
    assert main(["evaluate", str(run), "--tasks", "2"]) == 0


def test_a_damaged_conversion_is_found_and_the_way_out_works(tmp_path, store, capsys):
    folder = pets(tmp_path / "pets", classes=3)
    open_images(f"folder:{folder}", image_size=16)
    (array,) = store.root.glob("*.bytes")
    array.write_bytes(b"\7" + array.read_bytes()[1:])
    assert main(["data", "check", f"folder:{folder}"]) == 2
    index = next(store.root.glob("*.json"))
    assert f"remove {index}" in capsys.readouterr().err
    index.unlink()
    open_images(f"folder:{folder}", image_size=16)
    assert main(["data", "check", f"folder:{folder}"]) == 0


def test_a_run_notices_that_its_pictures_have_changed(tmp_path, capsys):
    folder, run = pets(tmp_path / "pets", classes=15), str(tmp_path / "run")
    assert train(folder, "--out", run) == 0
    assert train(folder, "--out", run, "--resume") == 0
    assert main(["evaluate", run, "--tasks", "2"]) == 0
    assert "not what" not in capsys.readouterr().err
    sources.write(folder, {f"pet 99/{i}.png": sources.picture(i) for i in range(5)})
    assert train(folder, "--out", run, "--resume", "--iterations", "3") == 2
    assert "is not what it was" in capsys.readouterr().err
    assert main(["evaluate", run, "--tasks", "2"]) == 0
    assert "is not what" in capsys.readouterr().err
