"""Pictures packed into pickles and arrays, one file for each split."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metamirror.data.addressing import SPLITS
from metamirror.data.installing.layouts import Content, Found, FoundClass, Key, twice
from metamirror.data.readers import safe_pickle
from metamirror.data.readers.archives import LARGE
from metamirror.data.readers.npz import read_npz
from metamirror.data.readers.source import Source

PACKED = re.compile(r"(?:^|[-_.])(train|val|test)\.(?:pkl|pickle)$")
IMAGES = re.compile(r"(?:^|[-_.])(train|val|test)_images(?:_png\.pkl|\.npz)$")

T = TypeVar("T")
Pictures = Sequence[bytes] | NDArray[np.uint8]
"""Encoded pictures, or arrays (pictures, height, width, channels)."""


def split_pickles(source: Source) -> Found | None:
    """One pickle a split: `{"data", "labels"}`, or `{"image_data", "class_dict"}`."""
    return packed(source, by_split(source, PACKED), _read_pickle)


def split_images_and_labels(source: Source) -> Found | None:
    """Pictures and labels of each split in two files, as tieredImageNet comes."""
    return packed(source, by_split(source, IMAGES), _read_pair)


def by_split(source: Source, pattern: re.Pattern[str]) -> dict[str, str]:
    """The entry of each split whose file name fits a pattern."""
    entries: dict[str, str] = {}
    for name in source.names:
        file = PurePosixPath(name).name
        # Beside the training set may lie other pictures of the training classes: not a split.
        if (match := pattern.search(file)) and not re.search(r"_phase_(val|test)\.", file):
            if match[1] in entries:
                raise twice(source, entries[match[1]], name)
            entries[match[1]] = name
    return entries


Loader = Callable[[Source, str], tuple[Pictures, list[str]]]
"""(source, entry) -> the pictures of one split, and the name of each one's class."""


def packed(source: Source, entries: dict[str, str], load: Loader) -> Found | None:
    """The classes of packed splits. One file at a time is in memory: it is read, and read again."""
    if not entries:
        return None
    classes: list[FoundClass] = []
    for split in (s for s in SPLITS if s in entries):
        members: dict[str, list[Key]] = {}
        pictures, labels = named(load, source, entries[split])
        if len(pictures) != len(labels):
            raise ValueError(
                f"{source.path}: {entries[split]} holds {len(pictures)} pictures and "
                f"{len(labels)} labels"
            )
        for i, label in enumerate(labels):
            # Numbers start anew in each split, names do not.
            name = f"{split}/{label}" if label.isdecimal() else label
            members.setdefault(name, []).append((entries[split], i))
        classes += [FoundClass(name, split, keys) for name, keys in sorted(members.items())]

    def read(tolerant: bool) -> Iterator[tuple[Key, Content]]:
        for name in entries.values():
            pictures, _ = named(load, source, name)
            for i, picture in enumerate(pictures):
                yield (name, i), picture

    return Found(source.path, classes, read)


def named(load: Callable[[Source, str], T], source: Source, name: str) -> T:
    """Loads, and says of which file whatever goes wrong: a file from outside can hold anything."""
    try:
        return load(source, name)
    except (TypeError, ValueError, LookupError, ArithmeticError, zlib.error, EOFError) as error:
        if name in str(error):
            raise
        raise ValueError(
            f"{source.path}: {name} is damaged or holds something else than its name says "
            f"({error}); download or copy it again"
        ) from error


def _read_pickle(source: Source, name: str) -> tuple[Pictures, list[str]]:
    found = safe_pickle.load(source.read(name, limit=LARGE), name)
    if isinstance(found, dict):
        fields = {text(key): value for key, value in found.items()}
        if {"image_data", "class_dict"} <= set(fields):
            pictures = _pictures(fields["image_data"], name)
            return pictures, _labels_of(fields["class_dict"], len(pictures), name)
        if {"data", "labels"} <= set(fields):
            return _pictures(fields["data"], name), _labels(fields["labels"], name)
    raise ValueError(
        f"{name} holds neither data and labels nor image_data and class_dict: it is not one of the "
        f"few-shot pickles that are known"
    )


def _read_pair(source: Source, name: str) -> tuple[Pictures, list[str]]:
    labels = re.sub(r"_images(_png\.pkl|\.npz)$", "_labels.pkl", name)
    if labels not in source.names:
        raise ValueError(f"{name} is there, but not {labels}, which belongs to it")
    fields = safe_pickle.load(source.read(labels), labels)
    if isinstance(fields, dict):
        fields = {text(key): value for key, value in fields.items()}
        fields = fields.get("label_specific", fields.get("labels"))
    names = _labels(fields, labels)
    content = source.read(name, limit=LARGE)
    if name.endswith(".npz"):
        return _pictures(read_npz(content, "images", name), name), names
    found = safe_pickle.load(content, name)
    if not isinstance(found, list | tuple | np.ndarray):
        raise ValueError(f"{name} holds {type(found).__name__}, not a list of encoded pictures")
    encoded = [np.asarray(entry) for entry in found]
    if any(entry.ndim > 2 or entry.dtype != np.uint8 for entry in encoded):
        raise ValueError(f"{name} holds something else than encoded pictures")
    return [entry.tobytes() for entry in encoded], names


def _pictures(value: Any, name: str) -> NDArray[np.uint8]:
    if not (isinstance(value, np.ndarray) and value.ndim == 4 and value.dtype == np.uint8):
        raise ValueError(f"{name} holds no pictures (pictures, height, width, channels) in bytes")
    if value.shape[3] not in (1, 3) or 0 in value.shape:
        raise ValueError(
            f"{name} holds pictures of shape {value.shape[1:]}; 1 or 3 channels needed"
        )
    return value


def _labels(value: Any, name: str) -> list[str]:
    if not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{name} holds no list of labels")
    return [text(label) for label in value]


def _labels_of(members: Any, count: int, name: str) -> list[str]:
    labels: list[str | None] = [None] * count
    if not isinstance(members, dict):
        raise ValueError(f"{name}: class_dict is no table of classes")
    for label, rows in members.items():
        for row in rows:
            if not 0 <= int(row) < count or labels[int(row)] is not None:
                raise ValueError(f"{name}: class_dict gives picture {row} to {label} wrongly")
            labels[int(row)] = text(label)
    if None in labels:
        raise ValueError(f"{name}: class_dict leaves out picture {labels.index(None)}")
    return [label for label in labels if label is not None]


def text(value: Any) -> str:
    """A word of a pickle, which Python 2 wrote as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
