"""The forms in which people keep published images. Each layout finds its own form, or nothing."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metamirror.core.option_spec import NoOptions
from metamirror.data.addressing import SPLITS
from metamirror.data.image_set import SUFFIXES, ImageClass
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
    """What a layout found: where, the label of each image, and what reads the images.

    `read` takes whether damaged entries of a zip come empty; it keeps the source's order.
    """

    where: Path
    labels: Mapping[Key, Label]
    read: Callable[[bool], Iterator[tuple[Key, Content]]]


Layout = Callable[[Source], Found | None]


@dataclass(frozen=True)
class Benchmark:
    """A published data set, and how its images are found."""

    name: str  # what users type.
    title: str  # the name people say, and who made it.
    licence: str
    source: str  # where people get it.
    layouts: Sequence[Layout]  # the forms in which it is accepted, tried in this order.
    forms: str  # the same in words, for when none fits.
    size: int  # height and width as stored.
    channels: int  # 1 for grey, 3 for colour.
    classes: Mapping[str, int]  # the official number of classes of each split.
    images: int  # the official number of images in all.
    # Checksums of official files, by file name; only those known for certain.
    md5: Mapping[str, str] = field(default_factory=dict)
    # Stable addresses of files in `md5`; none where a licence or a form is between.
    downloads: Sequence[str] = ()
    inverted: bool = False  # whether paper is white in the originals; ink is 1 here.
    options: type = NoOptions  # a frozen dataclass; its fields may follow the name.
    # (classes as stored, options) -> classes as used.
    arrange: Callable[[Sequence[ImageClass], Any], Sequence[ImageClass]] = lambda stored, _: stored


def split_folders(source: Source) -> Found | None:
    """Find `train/CLASS/image`, and the same for val and test."""
    return image_files(
        source,
        (
            ((SPLIT_WORDS[parts[-3].lower()], parts[-2]), name, parts[:-3])
            for name, parts in image_names(source)
            if len(parts) >= 3 and parts[-3].lower() in SPLIT_WORDS
        ),
    )


def class_folders(split_of: Callable[[str], str | None]) -> Layout:
    """Return a layout for `CLASS/image`, where the class tells the split; others are ignored."""
    return lambda source: image_files(
        source,
        (
            ((split, parts[-2]), name, parts[:-2])
            for name, parts in image_names(source)
            if len(parts) >= 2 and (split := split_of(parts[-2])) is not None
        ),
    )


def split_lists(source: Source) -> Found | None:
    """Find `train.csv`, `val.csv`, `test.csv` with columns filename and label, beside images."""
    lists = {f"{split}.csv": split for split in SPLITS}
    by_split = one_of_each(source, lists.get)
    paths: dict[str, list[str]] = {}
    for name, parts in image_names(source) if by_split else ():
        paths.setdefault(parts[-1], []).append(name)

    def listed() -> Iterator[tuple[Label, str, object]]:
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
                yield (split, row["label"]), places[0], None

    return image_files(source, listed())


def one_of_each(source: Source, split_of: Callable[[str], str | None]) -> dict[str, str]:
    """Return the one entry of each split, told by its file's name, in the order of the splits."""
    found: dict[str, str] = {}
    for entry in source.names:
        split = split_of(PurePosixPath(entry).name)
        if split is not None and found.setdefault(split, entry) != entry:
            raise two_copies(source, found[split], entry)
    return {split: found[split] for split in SPLITS if split in found}


def csv_rows(source: Source, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a list, with their line numbers."""
    try:
        text = source.read(name).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if not {"filename", "label"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{name} has columns {reader.fieldnames}; filename and label needed")
        for row in reader:
            if not (row["filename"] and row["label"]):
                raise ValueError(f"{name}, line {reader.line_num}, lacks a filename or a label")
            yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{name} is not a list of comma-separated values: {error}") from error


def image_files(source: Source, images: Iterable[tuple[Label, str, object]]) -> Found | None:
    """Return image files with their labels; None if there are none.

    With each comes its root, and all of a class lie under one root: two would be two copies.
    """
    labels: dict[Key, Label] = {}
    first: dict[Label, tuple[object, str]] = {}
    for label, image, root in images:
        first_root, first_image = first.setdefault(label, (root, image))
        if first_root != root:
            raise two_copies(source, first_image, image)
        if (image, 0) in labels:
            raise ValueError(f"{source.path}: the image {image!r} is listed twice")
        labels[image, 0] = label

    def read(tolerant: bool) -> Iterator[tuple[Key, Content]]:
        for name, content in source.read_many([name for name, _ in labels], tolerant=tolerant):
            yield (name, 0), content

    return Found(source.path, labels, read) if labels else None


def two_copies(source: Source, one: str, other: str) -> ValueError:
    """Return the error for one thing in two places, which would be in both support and query."""
    return ValueError(
        f"{source.path} holds both {one} and {other}, two copies as it seems: give a folder or "
        f"archive that holds one of them"
    )


def image_names(source: Source) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the entries of a source that are images, by their endings, and the parts of each."""
    paths = ((name, PurePosixPath(name)) for name in source.names)
    return ((name, path.parts) for name, path in paths if path.suffix.lower() in SUFFIXES)
