"""A support set as people keep it: one folder for each class, with pictures in it."""

from __future__ import annotations

from pathlib import Path

from metamirror.console import say
from metamirror.data.readers.images import SUFFIXES

MOST_PICTURES = 10_000
"""More than a few-shot task ever has: whoever gives a larger folder means another one."""


def labelled_pictures(folder: Path) -> tuple[list[Path], list[str]]:
    """The pictures of `folder/CLASS/*` and the class of each, in the order of their names."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give one with a sub-folder for each class")
    paths, labels, passed_over = list[Path](), list[str](), list[Path]()
    for inside in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        if not inside.is_dir():
            passed_over.append(inside)
            continue
        try:
            inside.name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the name {inside.name!r} in {folder} is not UTF-8; rename that folder"
            ) from None
        files = sorted(p for p in inside.iterdir() if not p.name.startswith("."))
        pictures = [p for p in files if p.suffix.lower() in SUFFIXES and p.is_file()]
        passed_over += [p for p in files if p not in pictures]
        if not pictures:
            raise ValueError(
                f"{inside} holds no picture ({', '.join(SUFFIXES)}): add one, or remove it"
            )
        paths += pictures
        labels += [inside.name] * len(pictures)
        if len(paths) > MOST_PICTURES:
            raise ValueError(f"{folder} holds more than {MOST_PICTURES:,} pictures; give a few")
    if not paths:
        raise ValueError(f"{folder} has no sub-folders: {folder}/CLASS/picture.png is expected")
    if passed_over:
        say(f"{len(passed_over)} files of {folder} are not used, such as {passed_over[0]}")
    return paths, labels
