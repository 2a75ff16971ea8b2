"""CIFAR-FS splits CIFAR-100 by class, FC100 by superclass, so that its splits differ far more."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from metamirror.data.installing.layouts import (
    Benchmark,
    Found,
    Label,
    Layout,
    class_folders,
    split_folders,
)
from metamirror.data.installing.packed_images import (
    named,
    packed_images,
    read_fields,
    split_pickles,
    words,
)
from metamirror.data.readers.archives import LARGE
from metamirror.data.readers.source import Source

LABELS = ("fine", "coarse")
TEXTS = [f"{kind}_label_names.txt" for kind in LABELS]
Records = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]
"""Fine labels, coarse labels, and images of 3,072 bytes each."""


def archive_layout(split_of: Callable[[str, str], str | None]) -> Layout:
    """Return a layout for the archive, of which both parts are used, 600 images for each class.

    `split_of` maps a fine and a coarse label to a split; None for a class that is not used.
    """

    def layout(source: Source) -> Found | None:
        if files := _files(source, "meta", "train", "test"):
            fields, read = named(read_fields, source, files[0]), _python_records
            names = [words(fields.get(f"{kind}_label_names"), files[0]) for kind in LABELS]
        elif files := _files(source, *TEXTS, "train.bin", "test.bin"):
            names = [source.read(file).decode("latin1").split() for file in files[:2]]
            read = _binary_records
        else:
            return None

        def load(source: Source, entry: str) -> tuple[NDArray[np.uint8], list[Label | None]]:
            fine, coarse, images = read(source, entry)
            for labels, known in zip((fine, coarse), names, strict=True):
                if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(known):
                    raise ValueError(f"{entry} has a label outside the {len(known)} class names")
            found: list[Label | None] = []
            for f, c in zip(fine, coarse, strict=True):
                split = split_of(names[0][f], names[1][c])
                found.append(None if split is None else (split, names[0][f]))
            return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), found

        return packed_images(source, files[-2:], load)

    return layout


def _files(source: Source, *wanted: str) -> list[str]:
    """Return files of the archive, whose folder may be what was given; none if one is missing."""
    found: dict[str, str] = {}
    for name in source.names:
        path = PurePosixPath(name)
        folder = path.parent.name or source.path.resolve().name
        if path.name in wanted and folder.startswith("cifar-100"):
            found.setdefault(path.name, name)
    return [found[name] for name in wanted] if len(found) == len(wanted) else []


def _python_records(source: Source, entry: str) -> Records:
    fields = read_fields(source, entry)
    try:
        data = np.asarray(fields["data"])
        fine, coarse = (np.asarray(fields[f"{kind}_labels"], np.int64) for kind in LABELS)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{entry} is not a part of CIFAR-100: {error}") from error
    if data.dtype != np.uint8 or data.shape != (len(fine), 3072) or fine.shape != coarse.shape:
        raise ValueError(f"{entry} is not a part of CIFAR-100: its data are {data.shape}")
    return fine, coarse, data


def _binary_records(source: Source, entry: str) -> Records:
    content = np.frombuffer(source.read(entry, limit=LARGE), np.uint8)
    if content.size == 0 or content.size % 3074:
        raise ValueError(f"{entry} has {content.size} bytes, which is no multiple of 3,074")
    table = content.reshape(-1, 3074)
    return table[:, 1].astype(int), table[:, 0].astype(int), table[:, 2:]


def _by_name(**names: str) -> dict[str, str]:
    return {name: split for split in names for name in names[split].split()}


CLASSES = _by_name(
    train="""
        dolphin seal aquarium_fish ray trout orchid sunflower tulip bottle bowl can cup plate apple
        mushroom orange pear clock keyboard chair couch bee caterpillar cockroach bear lion tiger
        wolf bridge castle house road skyscraper cloud forest mountain elephant kangaroo porcupine
        possum raccoon skunk lobster spider boy girl dinosaur lizard snake turtle hamster mouse
        rabbit shrew squirrel oak_tree palm_tree pine_tree willow_tree bus train lawn_mower
        streetcar tank
    """,
    val="""
        beaver otter flatfish shark lamp television beetle butterfly sea camel cattle crab
        crocodile maple_tree motorcycle tractor
    """,
    test="""
        whale poppy rose sweet_pepper telephone bed table wardrobe leopard plain chimpanzee fox
        snail worm baby man woman bicycle pickup_truck rocket
    """,
)
"""The split of each class (Bertinetto et al., 2019)."""

CIFAR_FS = Benchmark(
    name="cifar-fs",
    title="CIFAR-FS (Bertinetto et al., 2019)",
    licence="none stated: CIFAR-100 asks to cite Krizhevsky (2009)",
    source="https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100, python or binary version)",
    layouts=[
        archive_layout(lambda fine, coarse: CLASSES.get(fine)),
        class_folders(CLASSES.get),
        split_pickles,
    ],
    forms=(
        "the CIFAR-100 archive; or CLASS/*.png with CIFAR-100's class names; or "
        "CIFAR_FS_{train,val,test}.pickle"
    ),
    size=32,
    channels=3,
    classes={"train": 64, "val": 16, "test": 20},
    images=60_000,
    md5={
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    },
    downloads=["https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"],
)

SUPERCLASSES = _by_name(
    train="""
        fish flowers food_containers fruit_and_vegetables household_electrical_devices
        household_furniture large_man-made_outdoor_things large_natural_outdoor_scenes reptiles
        trees vehicles_1 vehicles_2
    """,
    val="large_carnivores large_omnivores_and_herbivores non-insect_invertebrates small_mammals",
    test="aquatic_mammals insects medium_mammals people",
)
"""The split of each superclass (Oreshkin et al., 2018)."""

FC100 = replace(
    CIFAR_FS,
    name="fc100",
    title="FC100 (Oreshkin et al., 2018)",
    layouts=[
        archive_layout(lambda fine, coarse: SUPERCLASSES.get(coarse)),
        split_pickles,
        split_folders,
    ],
    forms="CIFAR-100 archive; or FC100_{train,val,test}.pickle; or {train,val,test}/CLASS/*.png",
    classes={"train": 60, "val": 20, "test": 20},
)
