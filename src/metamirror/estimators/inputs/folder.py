"""A support set as people keep it: one folder of images for each class."""

from pathlib import Path

from metamirror.console import say
from metamirror.data.image_set import SUFFIXES

MOST_IMAGES = 10_000
"""More than a few-shot task ever has: whoever gives a larger folder means another one."""


def labelled_images(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the images of `folder/CLASS/*` and the class of each, in the order of their names."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give one with a sub-folder for each class")
    paths, labels, unused = list[Path](), list[str](), list[Path]()
    for inside in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        if not inside.is_dir():
            unused.append(inside)
            continue
        try:
            inside.name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the name {inside.name!r} in {folder} is not UTF-8; rename that folder"
            ) from None
        files = sorted(p for p in inside.iterdir() if not p.name.startswith("."))
        images = [p for p in files if p.suffix.lower() in SUFFIXES and p.is_file()]
        unused += [p for p in files if p not in images]
        if not images:
            raise ValueError(
                f"{inside} holds no image ({', '.join(SUFFIXES)}): add one, or remove the folder"
            )
        paths += images
        labels += [inside.name] * len(images)
        if len(paths) > MOST_IMAGES:
            raise ValueError(f"{folder} holds more than {MOST_IMAGES:,} images; give a few")
    if not paths:
        raise ValueError(f"{folder} has no sub-folders: {folder}/CLASS/image.png is expected")
    if unused:
        say(f"{len(unused)} files of {folder} are not used, such as {unused[0]}")
    return paths, labels
