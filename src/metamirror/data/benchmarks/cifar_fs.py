"""CIFAR-FS: CIFAR-100, split by class."""

from __future__ import annotations

from metamirror.data.benchmarks.cifar_100 import ARCHIVE, LICENCE, MD5, SOURCE, archive_layout
from metamirror.data.installing.benchmark import Benchmark
from metamirror.data.installing.layouts import class_folders
from metamirror.data.installing.packed_images import split_pickles

CLASSES = {
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
"""The split of Bertinetto et al. (2019)."""
SPLIT_OF = {name: split for split, names in CLASSES.items() for name in names.split()}

CIFAR_FS = Benchmark(
    name="cifar-fs",
    title="CIFAR-FS (Bertinetto et al., 2019)",
    licence=LICENCE,
    source=SOURCE,
    layouts=[
        archive_layout(lambda fine, coarse: SPLIT_OF.get(fine)),
        class_folders(SPLIT_OF.get),
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
    md5=MD5,
    downloads=[ARCHIVE],
)
