"""The user's own images: `PATH/{train,val,test}/CLASS/*`, or `PATH/CLASS/*` split at random."""

import contextlib
import hashlib
import os
from dataclasses import replace
from pathlib import Path

from metamirror.console import say
from metamirror.data.class_splits import seeded_splits
from metamirror.data.image_set import SUFFIXES, ImageSet
from metamirror.data.installing.layouts import Found, image_files, image_names, split_folders
from metamirror.data.path_spec import absolute, parse_path
from metamirror.data.readers.source import Source, open_source
from metamirror.data.store import Store

FOLDER_SIZE = 84
"""Height and width unless the user says otherwise: that of the common benchmarks."""


def folder_name(spec: str) -> str:
    """Return the name of the user's images in the store, without their size."""
    key = absolute(spec).encode(errors="surrogateescape")
    return f"folder-{hashlib.sha256(key).hexdigest()[:16]}"


def open_folder(
    spec: str, store: Store, image_size: int | None = None, *, skip_bad: bool = False
) -> ImageSet:
    """Open the user's images, converted at the first use and whenever the folder has changed."""
    from metamirror.data.installing.install import write

    _, path, _ = where = parse_path(spec, "folder")
    size = FOLDER_SIZE if image_size is None else image_size
    name = f"{folder_name(spec)}@{size}"
    with open_source(path, look_into_archives=False) as source:
        state = fingerprint(source)

        def install() -> None:
            check_links(source)
            found = split_folders(source) or split_at_random(source, where.split_seed)
            used = {entry for entry, _ in found.labels}
            if unused := [entry for entry in source.names if entry not in used]:
                say(
                    f"{len(unused)} files of {path} are not used, such as {unused[0]}: "
                    f"images are {', '.join(SUFFIXES)}, in a folder for each class"
                )
            channels = 1 if all_grey(source, used) else 3
            about: dict[str, object] = {"fingerprint": state, "path": str(path.resolve())}
            write(store, name, found, size, channels, about, skip_bad=skip_bad, title=spec)

        return replace(store.keep(name, "fingerprint", state, install), name=spec)


def fingerprint(source: Source) -> str:
    """Return what changes with the folder: a checksum of names, sizes and times."""
    facts = ((os.path.relpath(path, source.path), path.stat()) for path in source.files)
    lines = [f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}" for name, stat in facts]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def check_links(source: Source) -> None:
    """Refuse one file under two names: it would be in two classes, or in support and query."""
    seen: dict[Path, Path] = {}
    for path in source.files:
        other = seen.setdefault(path.resolve(), path)
        if other is not path:
            raise ValueError(f"{other} and {path} are one file, by a link: remove one of them")


def all_grey(source: Source, names: set[str]) -> bool:
    """Return whether no image has colours. What cannot be read is reported on conversion."""
    from metamirror.data.readers.images import BadImage, decode

    for name, content in source.read_many(names, tolerant=True):
        with contextlib.suppress(BadImage):
            if decode(content, name).shape[-1] > 1:
                return False
    return True


def split_at_random(source: Source, seed: int) -> Found:
    """Split the folders with images: three fifths train, a fifth each val and test."""
    folders = {name: "/".join(parts[:-1]) for name, parts in image_names(source) if parts[1:]}
    classes = sorted(set(folders.values()))
    count = len(classes)
    if count < 3:
        raise ValueError(
            f"{source.path} has {count} sub-folders with images; each is a class, and "
            f"train, val and test need one at least: {source.path}/CLASS/image.png"
        )
    split_of = dict(zip(classes, seeded_splits(count, seed), strict=True))
    found = image_files(source, (((split_of[f], f), name, None) for name, f in folders.items()))
    assert found is not None
    return found
