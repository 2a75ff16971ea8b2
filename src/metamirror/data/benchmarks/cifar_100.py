"""The archive of CIFAR-100, from whose hundred classes CIFAR-FS and FC100 are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from metamirror.data.installing.benchmark import Download
from metamirror.data.installing.layouts import Found, Label, Layout
from metamirror.data.installing.packed_images import named, packed_images, read_fields, words
from metamirror.data.readers.archives import LARGE
from metamirror.data.readers.source import Source

ARCHIVE = Download(
    "cifar-100-python.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
)
MD5 = {ARCHIVE.file: ARCHIVE.md5, "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}
LICENCE = "none stated: CIFAR-100 asks to cite Krizhevsky (2009)"
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html (CIFAR-100, python or binary version)"

Names = tuple[list[str], list[str]]
"""The names of the fine and of the coarse labels."""

Records = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]
"""Fine labels, coarse labels, and images of 3,072 bytes each."""


def archive_layout(split_of: Callable[[str, str], str | None]) -> Layout:
    """Return a layout for the archive, of which both parts are used, 600 images for each class.

    Args:
        split_of: (fine label, coarse label) -> split; None for a class that is not used.
    """

    def layout(source: Source) -> Found | None:
        for parts, read_names, read_records in (
            (("train", "test"), _python_names, _python_records),
            (("train.bin", "test.bin"), _binary_names, _binary_records),
        ):
            entries = [entry for part in parts if (entry := _part(source, part))]
            names = read_names(source)
            if names is not None and len(entries) == 2:
                return packed_images(source, entries, _loader(names, read_records, split_of))
        return None

    return layout


def _loader(
    names: Names,
    read: Callable[[Source, str], Records],
    split_of: Callable[[str, str], str | None],
) -> Callable[[Source, str], tuple[NDArray[np.uint8], list[Label | None]]]:
    def load(source: Source, entry: str) -> tuple[NDArray[np.uint8], list[Label | None]]:
        fine, coarse, data = read(source, entry)
        for labels, known in zip((fine, coarse), names, strict=True):
            if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(known):
                raise ValueError(f"{entry} has a label outside the {len(known)} names of classes")
        found: list[Label | None] = []
        for f, c in zip(fine, coarse, strict=True):
            split = split_of(names[0][f], names[1][c])
            found.append(None if split is None else (split, names[0][f]))
        return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), found

    return load


def _part(source: Source, part: str) -> str | None:
    """Return a file of the archive, whose folder may be what was given."""
    for name in source.names:
        path = PurePosixPath(name)
        folder = path.parent.name or source.path.resolve().name
        if path.name == part and folder.startswith("cifar-100"):
            return name
    return None


def _python_names(source: Source) -> Names | None:
    entry = _part(source, "meta")
    if entry is None:
        return None
    fields = named(read_fields, source, entry)
    fine, coarse = (fields.get(f"{kind}_label_names") for kind in ("fine", "coarse"))
    return words(fine, entry), words(coarse, entry)


def _python_records(source: Source, entry: str) -> Records:
    fields = read_fields(source, entry)
    try:
        data = np.asarray(fields["data"])
        fine, coarse = (np.asarray(fields[k], np.int64) for k in ("fine_labels", "coarse_labels"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{entry} is not a part of CIFAR-100: {error}") from error
    if data.dtype != np.uint8 or data.shape != (len(fine), 3072) or fine.shape != coarse.shape:
        raise ValueError(f"{entry} is not a part of CIFAR-100: its data are {data.shape}")
    return fine, coarse, data


def _binary_names(source: Source) -> Names | None:
    entries = [_part(source, f"{kind}_label_names.txt") for kind in ("fine", "coarse")]
    lists = [source.read(entry).decode("latin1").split() for entry in entries if entry]
    return (lists[0], lists[1]) if len(lists) == 2 else None


def _binary_records(source: Source, entry: str) -> Records:
    content = np.frombuffer(source.read(entry, limit=LARGE), np.uint8)
    if content.size == 0 or content.size % 3074:
        raise ValueError(f"{entry} has {content.size} bytes, which is no multiple of 3,074")
    table = content.reshape(-1, 3074)
    return table[:, 1].astype(int), table[:, 0].astype(int), table[:, 2:]
