"""The forms in which people keep few-shot images. Each layout finds its own form, or nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from metamirror.data.addressing import SPLITS
from metamirror.data.image_set import SUFFIXES
from metamirror.data.readers.source import Source

Key = tuple[str, int]
"""An image's place: an entry of the source, and its number inside it (0 for an image file)."""

Content = bytes | NDArray[np.uint8]
"""An image as a file's bytes, or as an array (height, width, channels)."""

Label = tuple[str, str]
"""A split, and the name of one of its classes."""

SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Found:
    """What a layout found.

    Attributes:
        where: the source.
        labels: the split and class of each image, by its place.
        read: (whether damaged entries of a zip come empty) -> images, in the source's order.
    """

    where: Path
    labels: Mapping[Key, Label]
    read: Callable[[bool], Iterator[tuple[Key, Content]]]


Layout = Callable[[Source], Found | None]


def split_folders(source: Source) -> Found | None:
    """Find `train/CLASS/image`, and the same for val and test."""
    files = ImageFiles(source)
    for name in image_names(source):
        parts = PurePosixPath(name).parts
        if len(parts) >= 3 and parts[-3].lower() in SPLIT_WORDS:
            files.add((SPLIT_WORDS[parts[-3].lower()], parts[-2]), name, parts[:-3])
    return files.found()


def class_folders(split_of: Callable[[str], str | None]) -> Layout:
    """Return a layout for `CLASS/image`, where the class tells the split; others are ignored."""

    def layout(source: Source) -> Found | None:
        files = ImageFiles(source)
        for name in image_names(source):
            parts = PurePosixPath(name).parts
            if len(parts) >= 2 and (split := split_of(parts[-2])) is not None:
                files.add((split, parts[-2]), name, parts[:-2])
        return files.found()

    return layout


def split_lists(source: Source) -> Found | None:
    """Find `train.csv`, `val.csv`, `test.csv` with columns filename and label, beside images."""
    lists = {f"{split}.csv": split for split in SPLITS}
    by_split = one_of_each(source, {n: lists.get(PurePosixPath(n).name) for n in source.names})
    if not by_split:
        return None
    paths: dict[str, list[str]] = {}
    for name in image_names(source):
        paths.setdefault(PurePosixPath(name).name, []).append(name)
    files = ImageFiles(source)
    for split, name in by_split.items():
        for line, row in csv_rows(source, name):
            places = paths.get(row["filename"], [])
            if not places:
                raise ValueError(
                    f"{source.path}: {name}, line {line}, lists the image {row['filename']!r}, "
                    f"which is not there: the download is incomplete"
                )
            if len(places) > 1:
                raise two_copies(source, *places[:2])
            files.add((split, row["label"]), places[0])
    return files.found()


def one_of_each(source: Source, splits: Mapping[str, str | None]) -> dict[str, str]:
    """Return the one entry of each split, in the order of the splits."""
    found: dict[str, str] = {}
    for entry, split in splits.items():
        if split is not None and found.setdefault(split, entry) != entry:
            raise two_copies(source, found[split], entry)
    return {split: found[split] for split in SPLITS if split in found}


def csv_rows(source: Source, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a list, with their line numbers."""
    try:
        text = source.read(name).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if not {"filename", "label"} <= set(reader.fieldnames or ()):
            raise ValueError(
                f"{name} has the columns {reader.fieldnames}; filename and label needed"
            )
        for row in reader:
            if not (row["filename"] and row["label"]):
                raise ValueError(f"{name}, line {reader.line_num}, lacks a filename or a label")
            yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{name} is not a list of comma-separated values: {error}") from error


class ImageFiles:
    """Image files by split and class, gathered one by one.

    Args:
        source: where they are.
    """

    def __init__(self, source: Source):
        self.source = source
        self.labels: dict[Key, Label] = {}
        self.first: dict[Label, tuple[tuple[str, ...], str]] = {}

    def add(self, label: Label, image: str, root: tuple[str, ...] = ()) -> None:
        """Add an image. All of a class lie under one root: two would be two copies."""
        first_root, first_image = self.first.setdefault(label, (root, image))
        if first_root != root:
            raise two_copies(self.source, first_image, image)
        if (image, 0) in self.labels:
            raise ValueError(f"{self.source.path}: the image {image!r} is listed twice")
        self.labels[image, 0] = label

    def found(self) -> Found | None:
        """Return what was gathered; None if there is nothing."""

        def read(tolerant: bool) -> Iterator[tuple[Key, Content]]:
            names = [name for name, _ in self.labels]
            for name, content in self.source.read_many(names, tolerant=tolerant):
                yield (name, 0), content

        return Found(self.source.path, self.labels, read) if self.labels else None


def two_copies(source: Source, one: str, other: str) -> ValueError:
    """Return the error for one thing in two places, which would be in both support and query."""
    return ValueError(
        f"{source.path} holds both {one} and {other}, two copies as it seems: give a folder or "
        f"archive that holds one of them"
    )


def image_names(source: Source) -> Iterator[str]:
    """Yield the entries of a source that are images, by their endings."""
    return (name for name in source.names if PurePosixPath(name).suffix.lower() in SUFFIXES)
