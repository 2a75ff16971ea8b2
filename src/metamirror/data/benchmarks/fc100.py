"""FC100: CIFAR-100, split by superclass, so that the splits differ far more."""

from __future__ import annotations

from metamirror.data.benchmarks.cifar_100 import ARCHIVE, LICENCE, MD5, SOURCE, archive_layout
from metamirror.data.installing.benchmark import Benchmark
from metamirror.data.installing.layouts import split_folders
from metamirror.data.installing.packed_images import split_pickles

SUPERCLASSES = {
    "train": """
        fish flowers food_containers fruit_and_vegetables household_electrical_devices
        household_furniture large_man-made_outdoor_things large_natural_outdoor_scenes reptiles
        trees vehicles_1 vehicles_2
    """,
    "val": "large_carnivores large_omnivores_and_herbivores non-insect_invertebrates small_mammals",
    "test": "aquatic_mammals insects medium_mammals people",
}
"""The split of Oreshkin et al. (2018)."""
SPLIT_OF = {name: split for split, names in SUPERCLASSES.items() for name in names.split()}

FC100 = Benchmark(
    name="fc100",
    title="FC100 (Oreshkin et al., 2018)",
    licence=LICENCE,
    source=SOURCE,
    layouts=[
        archive_layout(lambda fine, coarse: SPLIT_OF.get(coarse)),
        split_pickles,
        split_folders,
    ],
    forms=(
        "the CIFAR-100 archive; or FC100_{train,val,test}.pickle; or train/CLASS/*.png, val/..., "
        "test/..."
    ),
    size=32,
    channels=3,
    classes={"train": 60, "val": 20, "test": 20},
    images=60_000,
    md5=MD5,
    downloads=[ARCHIVE],
)
