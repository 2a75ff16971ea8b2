"""Classes of ImageNet: a hundred in miniImageNet, 608 in tieredImageNet, split by 34 groups."""

from metamirror.data.installing.layouts import Benchmark, split_folders, split_lists
from metamirror.data.installing.packed_images import split_images_and_labels, split_pickles

LICENCE = "research only: ImageNet's terms, non-commercial, not to be passed on"

MINI_IMAGENET = Benchmark(
    name="mini-imagenet",
    title="miniImageNet (Vinyals et al., 2016; split of Ravi & Larochelle, 2017)",
    licence=LICENCE,
    source=(
        "images: ImageNet (image-net.org, after registration), cut to the lists "
        "{train,val,test}.csv in github.com/twitter-research/meta-learning-lstm; ready-made copies "
        "are passed around as mini-imagenet-cache-*.pkl or as images with those lists"
    ),
    layouts=[split_lists, split_pickles, split_folders],
    forms=(
        "images with train.csv, val.csv and test.csv; or one pickle for each split; or "
        "train/CLASS/*.jpg, val/..., test/..."
    ),
    size=84,
    channels=3,
    classes={"train": 64, "val": 16, "test": 20},
    images=60_000,
)

TIERED_IMAGENET = Benchmark(
    name="tiered-imagenet",
    title="tieredImageNet (Ren et al., 2018)",
    licence=LICENCE,
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
