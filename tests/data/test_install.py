"""Every known layout of every benchmark becomes the same kind of stored set."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import metamirror as mm
from metamirror.data import BENCHMARKS, open_images
from metamirror.data.installing.install import add
from metamirror.data.store import Store
from tests.data import sources

LAYOUTS = {
    "omniglot": [sources.omniglot],
    "mini-imagenet": [
        sources.lists,
        sources.cache_pickles,
        sources.category_pickles,
        sources.folders,
    ],
    "tiered-imagenet": [sources.tiered_pickles, sources.tiered_arrays, sources.folders],
    "cifar-fs": [
        sources.cifar_python,
        sources.cifar_binary,
        sources.cifar_folders,
        sources.category_pickles,
    ],
    "fc100": [
        sources.cifar_python,
        sources.cifar_binary,
        sources.category_pickles,
        sources.folders,
    ],
    "cub": [sources.cub, sources.folders],
}
CASES = [(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts]


def test_every_benchmark_has_its_layouts_here():
    assert set(LAYOUTS) == set(BENCHMARKS)


@pytest.mark.parametrize(("name", "layout"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_each_layout_is_found_and_its_splits_are_disjoint(name, layout, tmp_path, store):
    add(BENCHMARKS[name], sources.PACK["zip"](tmp_path, layout()), store)
    images = open_images(name)
    benchmark = BENCHMARKS[name]
    assert images.pixels.shape[1:] == (benchmark.channels, benchmark.size, benchmark.size)
    assert images.pixels.dtype == np.uint8
    assert isinstance(images.pixels, np.memmap)
    by_split = {split: {c.name for c in images.of(split)} for split in ("train", "val", "test")}
    assert all(by_split.values())
    rows = {
        s: {r for c in images.of(s) for r in range(c.start, c.start + c.count)} for s in by_split
    }
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not by_split[one] & by_split[other]
        assert not rows[one] & rows[other]
    task = mm.tasks(name, "train", ways=2, shots=1, queries=1)[0]
    assert task.support.x.shape[2:] == images.pixels.shape[1:]


@pytest.mark.parametrize("pack", sources.PACK)
@pytest.mark.parametrize("layout", [sources.lists, sources.cache_pickles, sources.cifar_python])
def test_packing_does_not_matter(pack, layout, tmp_path, store):
    name = "cifar-fs" if layout is sources.cifar_python else "mini-imagenet"
    add(BENCHMARKS[name], sources.PACK[pack](tmp_path, layout()), store)
    packed = store.facts(name)["sha256"]
    other = Store(tmp_path / "other")
    add(BENCHMARKS[name], sources.write(tmp_path / "plain", layout()), other)
    assert packed == other.facts(name)["sha256"]


@pytest.mark.parametrize("layout", [sources.cache_pickles, sources.tiered_arrays, sources.folders])
def test_the_right_pictures_go_to_the_right_classes(layout, tmp_path, store):
    name = "tiered-imagenet" if layout is sources.tiered_arrays else "mini-imagenet"
    add(BENCHMARKS[name], sources.write(tmp_path / "x", layout()), store)
    images = open_images(name)
    for split, count in sources.SPLITS.items():
        classes = {c.name: c for c in images.of(split)}
        assert len(classes) == count
        for number in range(count):
            c = classes[sources.named(split, number)]
            assert c.count == sources.EACH
            values = images.pixels[c.start : c.start + c.count, :, 5, 5]
            for example, colour in enumerate(values):
                value = sources.value_of(split, number, example)
                assert colour.tolist() == [value, 255 - value, value // 2]


def test_omniglot_is_inverted_and_small(tmp_path, store):
    add(BENCHMARKS["omniglot"], sources.write(tmp_path / "x", sources.omniglot()), store)
    images = open_images("omniglot:turns=false")
    assert images.pixels.shape == (40, 1, 28, 28)
    first = images.pixels[0, 0]
    assert first[0, 0] == 0, "paper is 0"
    assert first[14, 10] == 255, "ink is 1"
    assert {c.split for c in images.classes if c.name.startswith("Hebrew/")} == {"val"}
    assert {c.split for c in images.classes if c.name.startswith("Keble/")} == {"test"}
    assert {c.split for c in images.classes if c.name.startswith("Angelic/")} == {"train"}


def test_omniglot_has_quarter_turns_in_every_split_by_default(tmp_path, store):
    add(BENCHMARKS["omniglot"], sources.write(tmp_path / "x", sources.omniglot()), store)
    plain, turned = open_images("omniglot:turns=false"), open_images("omniglot")
    for split in ("train", "val", "test"):
        assert len(turned.of(split)) == 4 * len(plain.of(split))


def test_omniglots_partitions_have_their_sizes_and_are_disjoint():
    from metamirror.data.benchmarks.omniglot import OmniglotOptions, arrange
    from metamirror.data.image_set import ImageClass

    classes = [ImageClass(f"{i:04}", "train", 20 * i, 20) for i in range(1623)]
    found = arrange(classes, OmniglotOptions("finn", turns=False))
    counts = {s: sum(c.split == s for c in found) for s in ("train", "val", "test")}
    assert counts == {"train": 1100, "val": 100, "test": 423}
    assert [c.split for c in found] == [
        c.split for c in arrange(classes, OmniglotOptions("finn", False))
    ]
    assert len({c.name for c in found}) == 1623
    # A random partition has no long runs of one split.
    assert (
        len({found[i].split for i in range(0, 1623, 100)}) == 3
        or len({c.split for c in found[:60]}) > 1
    )


def test_cifar_pictures_keep_rows_columns_and_channels(tmp_path, store):
    for i, layout in enumerate((sources.cifar_python, sources.cifar_binary)):
        add(BENCHMARKS["cifar-fs"], sources.write(tmp_path / f"{i}", layout()), store)
        pixels = open_images("cifar-fs").pixels
        assert (pixels[:, 1, 0, 31] == 77).all()
        assert (pixels[:, 1, 1:] == 0).all()
        assert (pixels[:, 2] == 200).all()


def test_cifar_has_its_two_splits(tmp_path, store):
    folder = sources.write(tmp_path / "x", sources.cifar_python())
    for name, expected in (
        ("cifar-fs", {"dolphin": "train", "train": "train", "beaver": "val", "whale": "test"}),
        ("fc100", {"dolphin": "train", "train": "train", "beaver": "test", "whale": "val"}),
    ):
        add(BENCHMARKS[name], folder, store)
        assert {c.name: c.split for c in open_images(name).classes} == expected
        assert {c.count for c in open_images(name).classes} == {4}, "both parts are used"


def test_official_splits_are_complete():
    from metamirror.data.benchmarks.cifar_100 import CLASSES, SUPERCLASSES
    from metamirror.data.benchmarks.cub import split_of

    def counts(values):
        values = list(values)
        return {s: values.count(s) for s in ("train", "val", "test")}

    assert counts(CLASSES.values()) == dict(BENCHMARKS["cifar-fs"].classes)
    assert counts(SUPERCLASSES.values()) == {"train": 12, "val": 4, "test": 4}
    assert counts(split_of(f"{i:03}.Bird") for i in range(1, 201)) == dict(
        BENCHMARKS["cub"].classes
    )
    assert split_of("201.Bird") is None
    assert split_of("images") is None


def test_another_size_is_made_once_and_again_when_the_original_changes(tmp_path, store):
    add(BENCHMARKS["mini-imagenet"], sources.write(tmp_path / "x", sources.folders()), store)
    small = open_images("mini-imagenet", image_size=20)
    assert small.pixels.shape[1:] == (3, 20, 20)
    assert (
        small.pixels[0, :, 3, 3].tolist()
        == open_images("mini-imagenet").pixels[0, :, 3, 3].tolist()
    )
    made = os.stat(store.root / store.facts("mini-imagenet@20")["array"]).st_mtime_ns
    open_images("mini-imagenet", image_size=20)
    assert os.stat(store.root / store.facts("mini-imagenet@20")["array"]).st_mtime_ns == made
    files = sources.folders()
    files["train/n00000/0.png"] = sources.picture(250)
    add(BENCHMARKS["mini-imagenet"], sources.write(tmp_path / "y", files), store)
    again = open_images("mini-imagenet", image_size=20)
    assert again.pixels[0, 0, 3, 3] == 250
    assert again.pixels[0, 0, 3, 3] != small.pixels[0, 0, 3, 3]


def test_remarks_say_what_differs_from_the_published_set(tmp_path, store):
    folder = tmp_path / "x"
    for half in ("background", "evaluation"):
        part = {k: v for k, v in sources.omniglot().items() if half in k}
        sources.write(folder / f"images_{half}.zip", part)
    remarks = "\n".join(add(BENCHMARKS["omniglot"], folder, store))
    assert "images_background.zip is not byte for byte the official file" in remarks
    assert "6/2/2 classes" in remarks
    assert "1028/172/423" in remarks


def test_half_of_omniglot_is_refused(tmp_path, store):
    half = {k: v for k, v in sources.omniglot().items() if "background" in k}
    with pytest.raises(ValueError, match="images_evaluation is missing"):
        add(BENCHMARKS["omniglot"], sources.write(tmp_path / "x", half), store)


def test_a_class_in_two_splits_is_refused(tmp_path, store):
    files = sources.folders() | {"test/n00000/0.png": sources.picture(3)}
    with pytest.raises(ValueError, match=r"'n00000'.*both train and test"):
        add(BENCHMARKS["mini-imagenet"], sources.write(tmp_path / "x", files), store)


BAD = {
    "a list names a picture that is not there": (
        sources.lists,
        "train.csv",
        b"filename,label\nnothere.jpg,n1\n",
        "train.csv, line 2.*'nothere.jpg'",
    ),
    "a list without columns": (sources.lists, "val.csv", b"a,b\n1,2\n", "val.csv.*columns"),
    "a list of bytes": (sources.lists, "val.csv", b"\xff\xfe\x00", "val.csv"),
    "a row without a label": (
        sources.lists,
        "val.csv",
        b"filename,label\nx.jpg,\n",
        "val.csv, line 2",
    ),
    "a pickle of something else": (
        sources.cache_pickles,
        "mini-imagenet-cache-val.pkl",
        pickle.dumps([1]),
        "cache-val.pkl",
    ),
    "labels that do not fit": (
        sources.category_pickles,
        "miniImageNet_category_split_val.pickle",
        pickle.dumps({"data": np.zeros((3, 4, 4, 3), np.uint8), "labels": [1]}),
        "3 images and 1 labels",
    ),
    "rows beyond the array": (
        sources.cache_pickles,
        "mini-imagenet-cache-val.pkl",
        pickle.dumps(
            {"image_data": np.zeros((3, 4, 4, 3), np.uint8), "class_dict": {"a": [0, 1, 9]}}
        ),
        "image 9",
    ),
    "floats for pictures": (
        sources.category_pickles,
        "miniImageNet_category_split_val.pickle",
        pickle.dumps({"data": np.zeros((3, 4, 4, 3)), "labels": [1, 2, 3]}),
        "no images",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_lists_and_pickles_are_named(case, tmp_path, store):
    layout, name, content, message = BAD[case]
    path = sources.write(tmp_path / "x", layout() | {name: content})
    with pytest.raises(ValueError, match=message):
        add(BENCHMARKS["mini-imagenet"], path, store)
    assert store.names() == []


TEST_DATA = os.environ.get("METAMIRROR_TEST_DATA")


@pytest.mark.skipif(
    not TEST_DATA, reason="METAMIRROR_TEST_DATA names no folder with omniglot/ in it"
)
def test_the_real_omniglot_has_its_counts(store):
    remarks = add(BENCHMARKS["omniglot"], Path(TEST_DATA) / "omniglot", store)
    assert not any("the published" in r for r in remarks)
    plain = open_images("omniglot:turns=false")
    assert {c.count for c in plain.classes} == {20}
    assert store.check("omniglot")["shape"] == [32_460, 1, 28, 28]


@pytest.mark.skipif(
    not TEST_DATA, reason="METAMIRROR_TEST_DATA names no folder with mini-imagenet/ in it"
)
def test_the_real_mini_imagenet_has_its_counts(store):
    remarks = add(BENCHMARKS["mini-imagenet"], Path(TEST_DATA) / "mini-imagenet", store)
    assert not any("the published" in r for r in remarks)
    assert {c.count for c in open_images("mini-imagenet").classes} == {600}
    assert store.check("mini-imagenet")["shape"] == [60_000, 3, 84, 84]


COPIES = {
    "omniglot": (sources.omniglot, "unpacked/"),
    "mini-imagenet": (sources.folders, "copy/"),
    "cub": (sources.cub, "segmentations/"),
    "cifar-fs": (sources.cifar_folders, "again/"),
}


@pytest.mark.parametrize("name", COPIES)
def test_two_copies_in_one_folder_are_refused(name, tmp_path, store):
    """A picture counted twice would be in both support and query."""
    layout, prefix = COPIES[name]
    files = layout()
    folder = sources.write(tmp_path / "x", {prefix + k: v for k, v in files.items()})
    sources.write(folder / "packed.zip", files)
    with pytest.raises(ValueError, match="two copies"):
        add(BENCHMARKS[name], folder, store)
    assert store.names() == []


def test_two_lists_or_two_pictures_of_one_name_are_refused(tmp_path, store):
    files = sources.lists()
    one = sources.write(tmp_path / "one", files | {"old/train.csv": files["train.csv"]})
    name = next(n for n in files if n.endswith(".jpg"))
    two = sources.write(tmp_path / "two", files | {"old/" + name: files[name]})
    for folder in (one, two):
        with pytest.raises(ValueError, match="two copies"):
            add(BENCHMARKS["mini-imagenet"], folder, store)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_source_without_one_of_the_splits_does_not_replace_a_whole_one(split, tmp_path, store):
    add(BENCHMARKS["mini-imagenet"], sources.write(tmp_path / "x", sources.folders()), store)
    before = store.check("mini-imagenet")
    part = {k: v for k, v in sources.folders().items() if not k.startswith(split)}
    with pytest.raises(ValueError, match=f"no {split} classes"):
        add(BENCHMARKS["mini-imagenet"], sources.write(tmp_path / "y", part), store)
    assert store.check("mini-imagenet") == before


def test_when_no_picture_can_be_read_the_old_state_stays(tmp_path, store):
    add(BENCHMARKS["mini-imagenet"], sources.write(tmp_path / "x", sources.folders()), store)
    before = store.check("mini-imagenet")
    bad = sources.write(tmp_path / "y", dict.fromkeys(sources.folders(), b"no picture"))
    with pytest.raises(ValueError, match="none of the 48 images"):
        add(BENCHMARKS["mini-imagenet"], bad, store, skip_bad=True)
    assert store.check("mini-imagenet") == before


def test_a_class_of_which_nothing_can_be_read_is_left_out(tmp_path, store):
    files = sources.folders()
    files |= {k: b"" for k in files if k.startswith("train/n00001/")}
    path = sources.write(tmp_path / "x", files)
    add(BENCHMARKS["mini-imagenet"], path, store, skip_bad=True)
    names = {c.name for c in open_images("mini-imagenet").classes}
    assert "n00001" not in names
    assert len(names) == 11


def test_a_damaged_entry_of_a_zip_can_be_skipped(tmp_path, store):
    path = sources.write(tmp_path / "x.zip", sources.folders())
    content = path.read_bytes()
    place = content.index(b"train/n00000/0.png") + 40
    path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
    with pytest.raises(ValueError, match=r"n00000/0\.png"):
        add(BENCHMARKS["mini-imagenet"], path, store)
    remarks = add(BENCHMARKS["mini-imagenet"], path, store, skip_bad=True)
    assert any("1 images could not be read" in remark for remark in remarks)


def test_the_unpacked_folder_of_cifar_itself_may_be_given(tmp_path, store):
    folder = sources.write(tmp_path / "x", sources.cifar_python()) / "cifar-100-python"
    add(BENCHMARKS["cifar-fs"], folder, store)
    assert len(open_images("cifar-fs").classes) == 4


PICTURES = np.zeros((3, 4, 4, 3), np.uint8)
HOSTILE = {
    "five channels": {"data": np.zeros((3, 4, 4, 5), np.uint8), "labels": [1, 2, 3]},
    "no height": {"data": np.zeros((3, 0, 4, 3), np.uint8), "labels": [1, 2, 3]},
    "no images": {"data": np.zeros((0, 4, 4, 3), np.uint8), "labels": []},
    "labels without an axis": {"data": PICTURES, "labels": np.array(3)},
    "no labels": {"data": PICTURES, "labels": None},
    "members that are a number": {"image_data": PICTURES, "class_dict": {"a": 3}},
    "members that are nothing": {"image_data": PICTURES, "class_dict": {"a": None}},
    "members that are words": {"image_data": PICTURES, "class_dict": {"a": ["x", "y", "z"]}},
    "infinite members": {"image_data": PICTURES, "class_dict": {"a": [0, 1, float("inf")]}},
    "a list of classes": {"image_data": PICTURES, "class_dict": ["a"]},
    "pictures left out": {"image_data": PICTURES, "class_dict": {"a": [0, 1]}},
    "a picture in two classes": {"image_data": PICTURES, "class_dict": {"a": [0, 1, 2], "b": [2]}},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_whatever_a_pickle_holds_the_complaint_names_the_file(case, tmp_path, store):
    files = sources.category_pickles()
    name = "miniImageNet_category_split_val.pickle"
    path = sources.write(tmp_path / "x", files | {name: pickle.dumps(HOSTILE[case])})
    with pytest.raises(ValueError, match=name):
        add(BENCHMARKS["mini-imagenet"], path, store)
    assert store.names() == []


def cifar_with(**fields) -> bytes:
    data, fine, coarse = sources.cifar()
    return pickle.dumps({"data": data, "fine_labels": fine, "coarse_labels": coarse} | fields, 2)


HOSTILE_CIFAR = {
    "a huge label": cifar_with(fine_labels=[2**70] * 8),
    "one label": cifar_with(fine_labels=3),
    "labels in two dimensions": cifar_with(fine_labels=np.zeros((8, 1), int)),
    "a label beyond the names": cifar_with(fine_labels=[99] * 8),
    "a negative label": cifar_with(fine_labels=[-1] * 8),
    "fewer labels": cifar_with(coarse_labels=[0]),
    "other data": cifar_with(data=np.zeros((8, 10), np.uint8)),
    "no data": cifar_with(data=None),
    "words": pickle.dumps("words"),
}


@pytest.mark.parametrize("case", HOSTILE_CIFAR)
def test_whatever_the_cifar_archive_holds_the_complaint_names_the_file(case, tmp_path, store):
    files = sources.cifar_python() | {"cifar-100-python/test": HOSTILE_CIFAR[case]}
    with pytest.raises(ValueError, match="cifar-100-python/test"):
        add(BENCHMARKS["cifar-fs"], sources.write(tmp_path / "x", files), store)
    assert store.names() == []


def test_a_damaged_array_file_is_named(tmp_path, store):
    files = sources.tiered_arrays()
    whole = files["val_images.npz"]
    plain = io.BytesIO()
    np.save(plain, np.zeros(3))
    squeezed = io.BytesIO()
    np.savez_compressed(squeezed, images=np.arange(60000, dtype=np.uint8).reshape(-1, 4, 5, 3))
    bent = bytearray(squeezed.getvalue())
    bent[len(bent) // 2] ^= 255
    locked = bytearray(whole)
    for start, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(start) + at] |= 1  # it says that it needs a password
    claims = whole.replace(b"(12, 84, 84, 3)", b"(99, 99, 99, 9)")
    assert claims != whole
    damaged = (whole[:-100], whole[:50], b"", plain.getvalue(), bytes(bent), bytes(locked), claims)
    for content in damaged:
        path = sources.write(tmp_path / "x", files | {"val_images.npz": content})
        with pytest.raises(ValueError, match=r"val_images\.npz"):
            add(BENCHMARKS["tiered-imagenet"], path, store)
