"""The forms in which people keep few-shot pictures. Each reader finds its own, or nothing."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from metamirror.data.random import SPLITS
from metamirror.data.reading.archive import Source
from metamirror.data.reading.pictures import SUFFIXES

Key = tuple[str, int]
"""A picture's place: an entry of the source, and its number inside it (0 for a picture file)."""

Content = bytes | NDArray[np.uint8]
"""A picture as a file's bytes, or as an array (height, width, channels)."""

SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
LARGE = 1 << 35
"""No list, pickle or array of the known data sets comes near this many bytes."""


@dataclass(frozen=True)
class FoundClass:
    """A class of a source: its name, its split, and where its pictures are."""

    name: str
    split: str
    pictures: list[Key]


@dataclass(frozen=True)
class Found:
    """What a layout found: classes, and a way to read their pictures in the source's order."""

    classes: list[FoundClass]
    read: Callable[[], Iterator[tuple[Key, Content]]]


Layout = Callable[[Source], Found | None]


def split_folders(source: Source) -> Found | None:
    """`train/CLASS/picture`, and the same for val and test."""
    members: dict[tuple[str, str], list[str]] = {}
    for name in picture_names(source):
        parts = PurePosixPath(name).parts
        if len(parts) >= 3 and parts[-3] in SPLIT_WORDS:
            members.setdefault((SPLIT_WORDS[parts[-3]], parts[-2]), []).append(name)
    return files(source, members)


def class_folders(split_of: Callable[[str], str | None]) -> Layout:
    """`CLASS/picture`, where the name of a class tells its split; other folders are passed over."""

    def layout(source: Source) -> Found | None:
        members: dict[tuple[str, str], list[str]] = {}
        for name in picture_names(source):
            folder = PurePosixPath(name).parent.name
            if (split := split_of(folder)) is not None:
                members.setdefault((split, folder), []).append(name)
        return files(source, members)

    return layout


def split_lists(source: Source) -> Found | None:
    """`train.csv`, `val.csv`, `test.csv` with columns filename and label, beside the pictures."""
    lists = {
        PurePosixPath(name).stem: name
        for name in source.names
        if PurePosixPath(name).name in [f"{split}.csv" for split in SPLITS]
    }
    if not lists:
        return None
    paths = {PurePosixPath(name).name: name for name in picture_names(source)}
    members: dict[tuple[str, str], list[str]] = {}
    for split in SPLITS:
        if split not in lists:
            continue
        for line, row in csv_rows(source, lists[split]):
            if row["filename"] not in paths:
                raise ValueError(
                    f"{lists[split]}, line {line}, lists the picture {row['filename']!r}, which is "
                    f"not there: the download is incomplete"
                )
            members.setdefault((split, row["label"]), []).append(paths[row["filename"]])
    return files(source, members)


def csv_rows(source: Source, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a list, with their line numbers."""
    try:
        text = source.read(name, limit=LARGE).decode("utf-8-sig")
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


def files(source: Source, members: Mapping[tuple[str, str], list[str]]) -> Found | None:
    """Picture files by (split, class); nothing if there is none."""
    if not members:
        return None
    classes = [
        FoundClass(name, split, [(path, 0) for path in paths])
        for (split, name), paths in sorted(
            members.items(), key=lambda item: (SPLITS.index(item[0][0]), item[0][1])
        )
    ]
    wanted = [path for found in classes for path, _ in found.pictures]
    if len(set(wanted)) < len(wanted):
        (twice, _), *_ = Counter(wanted).most_common(1)
        raise ValueError(f"the picture {twice!r} is listed twice")

    def read() -> Iterator[tuple[Key, Content]]:
        for path, content in source.read_many(wanted):
            yield (path, 0), content

    return Found(classes, read)


def picture_names(source: Source) -> Iterator[str]:
    """The entries of a source that are pictures, by their endings."""
    return (name for name in source.names if PurePosixPath(name).suffix.lower() in SUFFIXES)
