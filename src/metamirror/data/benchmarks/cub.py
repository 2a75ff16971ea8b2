"""Caltech-UCSD Birds 200-2011 (Wah et al., 2011): 200 species of birds."""

import re

from metamirror.data.installing.layouts import Benchmark, class_folders, split_folders


def split_of(folder: str) -> str | None:
    """Return the split of Chen et al. (2019): of four species two train, one val, one test.

    >>> split_of("002.Laysan_Albatross")
    'val'
    """
    match = re.fullmatch(r"(\d{3})\.\w.*", folder)
    if match is None or not 1 <= int(match[1]) <= 200:
        return None
    return ("test", "train", "val", "train")[int(match[1]) % 4]


CUB = Benchmark(
    name="cub",
    title="CUB-200-2011 (Wah et al., 2011; split of Chen et al., 2019)",
    licence="research only: the images belong to their makers; non-commercial use",
    source="https://data.caltech.edu/records/65de6-vp158",
    layouts=[class_folders(split_of), split_folders],
    forms="CUB_200_2011.tgz, packed or unpacked; or train/CLASS/*.jpg, val/..., test/...",
    size=84,
    channels=3,
    classes={"train": 100, "val": 50, "test": 50},
    images=11_788,
    md5={"CUB_200_2011.tgz": "97eceeb196236b17998738112f37df78"},
    downloads=["https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz"],
)
