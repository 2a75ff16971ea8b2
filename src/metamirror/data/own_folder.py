"""The user's own pictures: `PATH/{train,val,test}/CLASS/*`, or `PATH/CLASS/*` split at random."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np

from metamirror.data.installing.layouts import Found, Members, picture_names, split_folders
from metamirror.data.readers.images import BadPicture, is_grey
from metamirror.data.readers.source import Source
from metamirror.storage.atomic import expanded

FOLDER_SIZE = 84
"""Height and width unless the user says otherwise: that of the common benchmarks."""
HELD_OUT = 0.2
"""The share of the classes that val takes, and test as well."""


def parse_folder(spec: str) -> tuple[Path, int]:
    """The path of `folder:PATH` and the seed of its class split, as in `folder:PATH:split_seed=1`.

    >>> parse_folder("folder:my/birds:split_seed=3")
    (PosixPath('my/birds'), 3)
    """
    rest, seed = spec.removeprefix("folder:"), 0
    if match := re.fullmatch(r"(.+):split_seed=(\d{1,18})", rest):
        rest, seed = match[1], int(match[2])
    if not rest:
        raise ValueError(f"{spec!r} names no folder: write folder:PATH")
    return expanded(rest), seed


def absolute_folder(spec: str) -> str:
    """The same pictures, named so that they are found from anywhere."""
    path, seed = parse_folder(spec)
    return f"folder:{path.resolve()}" + (f":split_seed={seed}" if seed else "")


def find_folder(source: Source, split_seed: int) -> tuple[Found, int, list[str]]:
    """The classes of a folder, the channels that its pictures need, and the files not used."""
    check_links(source)
    found = split_folders(source) or split_at_random(source, split_seed)
    names = {path for c in found.classes for path, _ in c.pictures}
    passed_over = [name for name in source.names if name not in names]
    return found, 1 if all_grey(source, names) else 3, passed_over


def all_grey(source: Source, names: Iterable[str]) -> bool:
    """Whether no picture has colours. What cannot be read is complained of on conversion."""
    for name, content in source.read_many(names, tolerant=True):
        with contextlib.suppress(BadPicture):
            if not is_grey(content, name):
                return False
    return True


def check_links(source: Source) -> None:
    """One file under two names would be in two classes, or in both support and query."""
    seen: dict[Path, Path] = {}
    for path in source.files:
        other = seen.setdefault(path.resolve(), path)
        if other is not path:
            raise ValueError(f"{other} and {path} are one file, by a link: remove one of them")


def split_at_random(source: Source, seed: int) -> Found:
    """Folders with pictures as classes, three fifths for train, a fifth each for val and test."""
    members: dict[str, list[str]] = {}
    for name in picture_names(source):
        if folder := PurePosixPath(name).parent.as_posix().removeprefix("."):
            members.setdefault(folder, []).append(name)
    count = len(members)
    if count < 3:
        raise ValueError(
            f"{source.path} has {count} sub-folders with pictures; each is a class, and "
            f"train, val and test need one at least: {source.path}/CLASS/picture.png"
        )
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(count)
    held_out = max(1, round(HELD_OUT * count))
    split = ["test"] * held_out + ["val"] * held_out + ["train"] * (count - 2 * held_out)
    gathered = Members(source)
    for folder, place in zip(sorted(members), order, strict=True):
        for name in members[folder]:
            gathered.add(split[place], folder, name)
    found = gathered.found()
    assert found is not None
    return found


def fingerprint(source: Source) -> str:
    """What tells whether a folder has changed: names, sizes and times, not the pictures."""
    lines = []
    for path in source.files:
        facts = path.stat()
        lines.append(f"{os.path.relpath(path, source.path)}\0{facts.st_size}\0{facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
