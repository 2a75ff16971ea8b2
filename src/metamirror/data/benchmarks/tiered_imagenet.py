"""tieredImageNet: 608 classes of ImageNet, split by 34 groups of classes."""

from __future__ import annotations

from metamirror.data.installing.benchmark import Benchmark
from metamirror.data.installing.layouts import split_folders
from metamirror.data.installing.packed_images import split_images_and_labels, split_pickles

TIERED_IMAGENET = Benchmark(
    name="tiered-imagenet",
    title="tieredImageNet (Ren et al., 2018)",
    licence="research only: ImageNet's terms, non-commercial, not to be passed on",
    source="github.com/renmengye/few-shot-ssl-public links train_images_png.pkl and the others",
    layouts=[split_images_and_labels, split_folders, split_pickles],
    forms=(
        "{train,val,test}_images_png.pkl (or _images.npz) with {train,val,test}_labels.pkl; or "
        "train/CLASS/*.jpg, val/..., test/..."
    ),
    size=84,
    channels=3,
    classes={"train": 351, "val": 97, "test": 160},
    images=779_165,
)
