"""The forms in which people keep few-shot pictures. Each reader finds its own, or nothing."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from metamirror.data.addressing import SPLITS
from metamirror.data.readers.images import SUFFIXES
from metamirror.data.readers.source import Source

Key = tuple[str, int]
"""A picture's place: an entry of the source, and its number inside it (0 for a picture file)."""

Content = bytes | NDArray[np.uint8]
"""A picture as a file's bytes, or as an array (height, width, channels)."""

SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class FoundClass:
    """A class of a source: its name, its split, and where its pictures are."""

    name: str
    split: str
    pictures: list[Key]


@dataclass(frozen=True)
class Found:
    """What a layout found.

    Attributes:
        where: the source.
        classes: with the places of their pictures.
        read: (whether damaged entries of a zip come empty) -> pictures, in the source's order.
    """

    where: Path
    classes: list[FoundClass]
    read: Callable[[bool], Iterator[tuple[Key, Content]]]


Layout = Callable[[Source], Found | None]


def split_folders(source: Source) -> Found | None:
    """`train/CLASS/picture`, and the same for val and test."""
    members = Members(source)
    for name in picture_names(source):
        parts = PurePosixPath(name).parts
        if len(parts) >= 3 and parts[-3].lower() in SPLIT_WORDS:
            members.add(SPLIT_WORDS[parts[-3].lower()], parts[-2], name, parts[:-3])
    return members.found()


def class_folders(split_of: Callable[[str], str | None]) -> Layout:
    """`CLASS/picture`, where the name of a class tells its split; other folders are passed over."""

    def layout(source: Source) -> Found | None:
        members = Members(source)
        for name in picture_names(source):
            parts = PurePosixPath(name).parts
            if len(parts) >= 2 and (split := split_of(parts[-2])) is not None:
                members.add(split, parts[-2], name, parts[:-2])
        return members.found()

    return layout


def split_lists(source: Source) -> Found | None:
    """`train.csv`, `val.csv`, `test.csv` with columns filename and label, beside the pictures."""
    lists: dict[str, str] = {}
    for name in source.names:
        split = PurePosixPath(name).name.removesuffix(".csv")
        if split in SPLITS and name.endswith(".csv"):
            if split in lists:
                raise twice(source, lists[split], name)
            lists[split] = name
    if not lists:
        return None
    paths: dict[str, list[str]] = {}
    for name in picture_names(source):
        paths.setdefault(PurePosixPath(name).name, []).append(name)
    members = Members(source)
    for split in (s for s in SPLITS if s in lists):
        for line, row in csv_rows(source, lists[split]):
            places = paths.get(row["filename"], [])
            if not places:
                raise ValueError(
                    f"{source.path}: {lists[split]}, line {line}, lists the picture "
                    f"{row['filename']!r}, which is not there: the download is incomplete"
                )
            if len(places) > 1:
                raise twice(source, *places[:2])
            members.add(split, row["label"], places[0])
    return members.found()


def csv_rows(source: Source, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a list, with their line numbers."""
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


class Members:
    """Picture files by split and class, gathered one by one.

    Args:
        source: where they are.
    """

    def __init__(self, source: Source):
        self.source = source
        self.pictures: dict[tuple[str, str], list[str]] = {}
        self.roots: dict[tuple[str, str], tuple[tuple[str, ...], str]] = {}

    def add(self, split: str, name: str, picture: str, root: tuple[str, ...] = ()) -> None:
        """A picture of a class. All of a class lie under one root: two would be two copies."""
        first = self.roots.setdefault((split, name), (root, picture))
        if first[0] != root:
            raise twice(self.source, first[1], picture)
        self.pictures.setdefault((split, name), []).append(picture)

    def found(self) -> Found | None:
        """What was gathered; nothing if there is none."""
        if not self.pictures:
            return None
        order = sorted(self.pictures, key=lambda key: (SPLITS.index(key[0]), key[1]))
        classes = [
            FoundClass(name, split, [(path, 0) for path in self.pictures[split, name]])
            for split, name in order
        ]
        wanted = [path for c in classes for path, _ in c.pictures]
        if len(set(wanted)) < len(wanted):
            (path, _), *_ = Counter(wanted).most_common(1)
            raise ValueError(f"{self.source.path}: the picture {path!r} is listed twice")

        def read(tolerant: bool) -> Iterator[tuple[Key, Content]]:
            for path, content in self.source.read_many(wanted, tolerant=tolerant):
                yield (path, 0), content

        return Found(self.source.path, classes, read)


def twice(source: Source, one: str, other: str) -> ValueError:
    """The same thing in two places: counted twice, it would be in both support and query."""
    return ValueError(
        f"{source.path} holds both {one} and {other}, two copies as it seems: give a folder or "
        f"archive that holds one of them"
    )


def picture_names(source: Source) -> Iterator[str]:
    """The entries of a source that are pictures, by their endings."""
    return (name for name in source.names if PurePosixPath(name).suffix.lower() in SUFFIXES)
