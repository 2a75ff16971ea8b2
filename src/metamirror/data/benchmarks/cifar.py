"""CIFAR-FS and FC100: the hundred classes of CIFAR-100, split in two ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metamirror.data.addressing import SPLITS
from metamirror.data.benchmarks.benchmark import Benchmark, Download
from metamirror.data.installing.layouts import (
    Content,
    Found,
    FoundClass,
    Key,
    Layout,
    class_folders,
    split_folders,
)
from metamirror.data.installing.pickled_splits import named, split_pickles, text
from metamirror.data.readers import safe_pickle
from metamirror.data.readers.archives import LARGE
from metamirror.data.readers.source import Source

FINE = {
    "train": """
        dolphin seal aquarium_fish ray trout orchid sunflower tulip bottle bowl can cup plate apple
        mushroom orange pear clock keyboard chair couch bee caterpillar cockroach bear lion tiger
        wolf bridge castle house road skyscraper cloud forest mountain elephant kangaroo porcupine
        possum raccoon skunk lobster spider boy girl dinosaur lizard snake turtle hamster mouse
        rabbit shrew squirrel oak_tree palm_tree pine_tree willow_tree bus train lawn_mower
        streetcar tank
    """,
    "val": """
        beaver otter flatfish shark lamp television beetle butterfly sea camel cattle crab
        crocodile maple_tree motorcycle tractor
    """,
    "test": """
        whale poppy rose sweet_pepper telephone bed table wardrobe leopard plain chimpanzee fox
        snail worm baby man woman bicycle pickup_truck rocket
    """,
}
SPLIT_OF_FINE = {name: split for split, names in FINE.items() for name in names.split()}
COARSE = {
    "train": """
        fish flowers food_containers fruit_and_vegetables household_electrical_devices
        household_furniture large_man-made_outdoor_things large_natural_outdoor_scenes reptiles
        trees vehicles_1 vehicles_2
    """,
    "val": "large_carnivores large_omnivores_and_herbivores non-insect_invertebrates small_mammals",
    "test": "aquatic_mammals insects medium_mammals people",
}
SPLIT_OF_COARSE = {name: split for split, names in COARSE.items() for name in names.split()}


def fs_split(fine: str, coarse: str = "") -> str | None:
    """The split of Bertinetto et al. (2019), by class."""
    return SPLIT_OF_FINE.get(fine)


def fc_split(fine: str, coarse: str) -> str | None:
    """The split of Oreshkin et al. (2018), by superclass: far more different between splits."""
    return SPLIT_OF_COARSE.get(coarse)


def archive_layout(split_of: Callable[[str, str], str | None]) -> Layout:
    """The CIFAR-100 archive, python or binary version; both of its parts are used, 600 a class."""

    def layout(source: Source) -> Found | None:
        for parts, names, records in (
            (("train", "test"), _python_names, _python_records),
            (("train.bin", "test.bin"), _binary_names, _binary_records),
        ):
            entries = [_part(source, part) for part in parts]
            labels = names(source)
            if labels is None or None in entries:
                continue
            return _found(source, [e for e in entries if e], labels, records, split_of)
        return None

    return layout


Records = Callable[[Source, str], tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]]
"""(source, entry) -> fine labels, coarse labels, pictures (n, height, width, channels)."""


def _found(
    source: Source,
    entries: list[str],
    names: tuple[list[str], list[str]],
    records: Records,
    split_of: Callable[[str, str], str | None],
) -> Found:
    fine_names, coarse_names = names
    members: dict[tuple[str, str], list[Key]] = {}
    for entry in entries:
        fine, coarse, _ = named(records, source, entry)
        if fine.max(initial=0) >= len(fine_names) or coarse.max(initial=0) >= len(coarse_names):
            raise ValueError(f"{entry} has a label beyond the {len(fine_names)} names of classes")
        for i, (f, c) in enumerate(zip(fine, coarse, strict=True)):
            split = split_of(fine_names[f], coarse_names[c])
            if split is not None:
                members.setdefault((split, fine_names[f]), []).append((entry, i))

    def read(tolerant: bool) -> Iterator[tuple[Key, Content]]:
        for entry in entries:
            for i, picture in enumerate(named(records, source, entry)[2]):
                yield (entry, i), picture

    order = sorted(members.items(), key=lambda item: (SPLITS.index(item[0][0]), item[0][1]))
    classes = [FoundClass(name, split, keys) for (split, name), keys in order]
    return Found(source.path, classes, read)


def _part(source: Source, part: str) -> str | None:
    """A file of the archive, whose folder may be what was given."""
    for name in source.names:
        path = PurePosixPath(name)
        folder = path.parent.name or source.path.resolve().name
        if path.name == part and folder.startswith("cifar-100"):
            return name
    return None


def _python_names(source: Source) -> tuple[list[str], list[str]] | None:
    entry = _part(source, "meta")
    if entry is None:
        return None
    fields = named(_fields, source, entry)
    return _words(fields, "fine_label_names", entry), _words(fields, "coarse_label_names", entry)


def _python_records(
    source: Source, entry: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    fields = _fields(source, entry)
    try:
        data = np.asarray(fields["data"])
        fine, coarse = (np.asarray(fields[k], np.int64) for k in ("fine_labels", "coarse_labels"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{entry} is not a part of CIFAR-100: {error}") from error
    if data.dtype != np.uint8 or data.shape != (len(fine), 3072) or fine.shape != coarse.shape:
        raise ValueError(f"{entry} is not a part of CIFAR-100: its data are {data.shape}")
    return _checked(fine, coarse, data, entry)


def _binary_names(source: Source) -> tuple[list[str], list[str]] | None:
    lists = []
    for file in ("fine_label_names.txt", "coarse_label_names.txt"):
        entry = _part(source, file)
        if entry is None:
            return None
        lists.append(source.read(entry).decode("latin1").split())
    return lists[0], lists[1]


def _binary_records(
    source: Source, entry: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    content = np.frombuffer(source.read(entry, limit=LARGE), np.uint8)
    if content.size == 0 or content.size % 3074:
        raise ValueError(f"{entry} has {content.size} bytes, which is no multiple of 3,074")
    table = content.reshape(-1, 3074)
    return _checked(table[:, 1].astype(int), table[:, 0].astype(int), table[:, 2:], entry)


def _checked(
    fine: NDArray[np.int64], coarse: NDArray[np.int64], data: NDArray[np.uint8], entry: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    if min(fine.min(initial=0), coarse.min(initial=0)) < 0:
        raise ValueError(f"{entry} has a negative label")
    return fine, coarse, data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _fields(source: Source, entry: str) -> dict[str, Any]:
    found = safe_pickle.load(source.read(entry, limit=LARGE), entry)
    if not isinstance(found, dict):
        raise ValueError(f"{entry} is not a part of CIFAR-100: it holds {type(found).__name__}")
    return {text(key): value for key, value in found.items()}


def _words(fields: dict[str, Any], key: str, entry: str) -> list[str]:
    words = fields.get(key)
    if not isinstance(words, list):
        raise ValueError(f"{entry} lacks {key}")
    return [text(word) for word in words]


ARCHIVE = Download(
    "cifar-100-python.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
)
MD5 = {ARCHIVE.file: ARCHIVE.md5, "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}
LICENCE = "none stated: CIFAR-100 asks to cite Krizhevsky (2009)"
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100, python or binary version)"

CIFAR_FS = Benchmark(
    name="cifar-fs",
    title="CIFAR-FS (Bertinetto et al., 2019)",
    licence=LICENCE,
    source=SOURCE,
    layouts=[archive_layout(fs_split), class_folders(fs_split), split_pickles],
    forms=(
        "the CIFAR-100 archive; or CLASS/*.png with CIFAR-100's class names; or "
        "CIFAR_FS_{train,val,test}.pickle"
    ),
    size=32,
    channels=3,
    classes={"train": 64, "val": 16, "test": 20},
    pictures=60_000,
    md5=MD5,
    downloads=[ARCHIVE],
)

FC100 = Benchmark(
    name="fc100",
    title="FC100 (Oreshkin et al., 2018)",
    licence=LICENCE,
    source=SOURCE,
    layouts=[archive_layout(fc_split), split_pickles, split_folders],
    forms=(
        "the CIFAR-100 archive; or FC100_{train,val,test}.pickle; or train/CLASS/*.png, val/..., "
        "test/..."
    ),
    size=32,
    channels=3,
    classes={"train": 60, "val": 20, "test": 20},
    pictures=60_000,
    md5=MD5,
    downloads=[ARCHIVE],
)
