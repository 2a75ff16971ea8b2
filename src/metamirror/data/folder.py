"""The user's own pictures: `PATH/{train,val,test}/CLASS/*`, or `PATH/CLASS/*` split at random."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

import numpy as np

from metamirror.data.benchmarks.layouts import Found, files, picture_names, split_folders
from metamirror.data.reading.archive import Source
from metamirror.data.reading.pictures import is_grey

FOLDER_SIZE = 84
"""Height and width unless the user says otherwise: that of the common benchmarks."""
SHARES = (0.6, 0.2, 0.2)


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
    return Path(rest).expanduser(), seed


def find_folder(source: Source, split_seed: int) -> tuple[Found, int]:
    """The classes of a folder, and how many channels its pictures need."""
    found = split_folders(source) or split_at_random(source, split_seed)
    names = [path for c in found.classes for path, _ in c.pictures]
    grey = all(is_grey(content, name) for name, content in source.read_many(names))
    return found, 1 if grey else 3


def split_at_random(source: Source, seed: int) -> Found:
    """Sub-folders as classes, three fifths of them for train, a fifth each for val and test."""
    members: dict[str, list[str]] = {}
    for name in picture_names(source):
        if folder := PurePosixPath(name).parent.as_posix().removeprefix("."):
            members.setdefault(folder, []).append(name)
    if len(members) < 3:
        raise ValueError(
            f"{source.path} has {len(members)} sub-folders with pictures; each is a class, and "
            f"train, val and test need one at least: {source.path}/CLASS/picture.png"
        )
    classes = sorted(members)
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(classes))
    val, test = (max(1, round(share * len(classes))) for share in SHARES[1:])
    split = ["test"] * test + ["val"] * val + ["train"] * (len(classes) - test - val)
    split_of = {name: split[place] for name, place in zip(classes, order, strict=True)}
    found = files(source, {(split_of[name], name): members[name] for name in classes})
    assert found is not None
    return found


def fingerprint(source: Source) -> str:
    """What tells whether a folder has changed: names, sizes and times, not the pictures."""
    lines = []
    for path in source.files:
        facts = path.stat()
        lines.append(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
