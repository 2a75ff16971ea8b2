"""Many images in one file, a pickle or an array, and layouts with one such file for each split."""

import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metamirror.data.installing.layouts import Content, Found, Key, Label, one_of_each
from metamirror.data.readers import safe_pickle
from metamirror.data.readers.archives import LARGE, read_npz
from metamirror.data.readers.source import Source

PICKLES = re.compile(r"(?:^|[-_.])(train|val|test)\.(?:pkl|pickle)$")
IMAGES = re.compile(r"(?:^|[-_.])(train|val|test)_images(?:_png\.pkl|\.npz)$")

T = TypeVar("T")
Images = Sequence[bytes] | NDArray[np.uint8]
"""Encoded images, or arrays (images, height, width, channels)."""


def packed_images(
    source: Source,
    entries: Collection[str],
    load: Callable[[Source, str], tuple[Images, Sequence[Label | None]]],
) -> Found | None:
    """Find the classes of packed images.

    One file at a time is in memory: it is read for its labels, and read again for its images.
    `load` gives the images of an entry, and the label of each; None leaves an image out.
    """
    found: dict[Key, Label] = {}
    for entry in entries:
        images, labels = named(load, source, entry)
        if len(images) != len(labels):
            raise ValueError(
                f"{source.path}: {entry} holds {len(images)} images and {len(labels)} labels"
            )
        for i, label in enumerate(labels):
            if label is not None:
                found[entry, i] = label

    def read(tolerant: bool) -> Iterator[tuple[Key, Content]]:
        for entry in entries:
            for i, image in enumerate(named(load, source, entry)[0]):
                yield (entry, i), image

    return Found(source.path, found, read) if found else None


def named(load: Callable[[Source, str], T], source: Source, entry: str) -> T:
    """Load, and name the file in whatever goes wrong: a file from outside can hold anything."""
    try:
        return load(source, entry)
    except (TypeError, ValueError, LookupError, ArithmeticError, zlib.error, EOFError) as error:
        if entry in str(error):
            raise
        raise ValueError(
            f"{source.path}: {entry} is damaged or holds something else than its name says "
            f"({error}); download or copy it again"
        ) from error


def split_pickles(source: Source) -> Found | None:
    """Find one pickle for each split: `{"data", "labels"}`, or `{"image_data", "class_dict"}`."""
    return _one_file_each(source, PICKLES, _read_pickle)


def split_images_and_labels(source: Source) -> Found | None:
    """Find images and labels of each split in two files, as tieredImageNet comes."""
    return _one_file_each(source, IMAGES, _read_pair)


def _one_file_each(
    source: Source,
    pattern: re.Pattern[str],
    load: Callable[[Source, str], tuple[Images, list[str]]],
) -> Found | None:
    def split_of(file: str) -> str | None:
        match = pattern.search(file)
        # Beside the training set may lie other images of the training classes: not a split.
        return match[1] if match and not re.search(r"_phase_(val|test)\.", file) else None

    def load_labels(source: Source, entry: str) -> tuple[Images, list[Label]]:
        images, names = load(source, entry)
        split = splits[entry]
        # Numbers start anew in each split, names do not.
        return images, [(split, f"{split}/{n}" if n.isdecimal() else n) for n in names]

    splits = {entry: split for split, entry in one_of_each(source, split_of).items()}
    return packed_images(source, splits, load_labels)


def read_fields(source: Source, entry: str) -> dict[str, Any]:
    """Return a pickled dict by its keys as words; an empty one if it is something else."""
    found = safe_pickle.load(source.read(entry, limit=LARGE), entry)
    return {text(k): value for k, value in found.items()} if isinstance(found, dict) else {}


def _read_pickle(source: Source, entry: str) -> tuple[Images, list[str]]:
    fields = read_fields(source, entry)
    if {"image_data", "class_dict"} <= set(fields):
        images = _checked_images(fields["image_data"], entry)
        return images, _labels_by_class(fields["class_dict"], len(images), entry)
    if {"data", "labels"} <= set(fields):
        return _checked_images(fields["data"], entry), words(fields["labels"], entry)
    raise ValueError(
        f"{entry} holds neither data and labels nor image_data and class_dict: it is not one of "
        f"the few-shot pickles that are known"
    )


def _read_pair(source: Source, entry: str) -> tuple[Images, list[str]]:
    labels = re.sub(r"_images(_png\.pkl|\.npz)$", "_labels.pkl", entry)
    if labels not in source.names:
        raise ValueError(f"{entry} is there, but not {labels}, which belongs to it")
    found = safe_pickle.load(source.read(labels), labels)
    if isinstance(found, dict):
        fields = {text(key): value for key, value in found.items()}
        found = fields.get("label_specific", fields.get("labels"))
    names = words(found, labels)
    content = source.read(entry, limit=LARGE)
    if entry.endswith(".npz"):
        return _checked_images(read_npz(content, "images", entry), entry), names
    found = safe_pickle.load(content, entry)
    if not isinstance(found, list | tuple | np.ndarray):
        raise ValueError(f"{entry} holds {type(found).__name__}, not a list of encoded images")
    encoded = [np.asarray(image) for image in found]
    if any(image.ndim > 2 or image.dtype != np.uint8 for image in encoded):
        raise ValueError(f"{entry} holds something else than encoded images")
    return [image.tobytes() for image in encoded], names


def _checked_images(value: Any, entry: str) -> NDArray[np.uint8]:
    if not (isinstance(value, np.ndarray) and value.ndim == 4 and value.dtype == np.uint8):
        raise ValueError(f"{entry} holds no images (images, height, width, channels) in bytes")
    if value.shape[3] not in (1, 3) or 0 in value.shape:
        raise ValueError(f"{entry} holds images of shape {value.shape[1:]}; 1 or 3 channels needed")
    return value


def _labels_by_class(members: Any, count: int, entry: str) -> list[str]:
    labels = [""] * count
    if not isinstance(members, dict):
        raise ValueError(f"{entry}: class_dict is no table of classes")
    for label, rows in members.items():
        for row in rows:
            if not 0 <= int(row) < count or labels[int(row)]:
                raise ValueError(f"{entry}: class_dict gives image {row} to {label} wrongly")
            labels[int(row)] = text(label)
    if "" in labels:
        raise ValueError(f"{entry}: class_dict leaves out image {labels.index('')}")
    return labels


def words(value: Any, entry: str) -> list[str]:
    """Return the words of a pickled list."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{entry} holds no list of labels")
    return [text(label) for label in value]


def text(value: Any) -> str:
    """Return a word of a pickle, which Python 2 wrote as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
