"""The features of a whole data set, in a file from which tasks are drawn: `arrays:FEATURES.npz`."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metamirror.console import Progress
from metamirror.core.files import expanded, write_atomically
from metamirror.data import ImageSet, open_images
from metamirror.data.addressing import SPLITS
from metamirror.estimators.backbones.backbone import AT_ONCE
from metamirror.estimators.backbones.opening import open_backbone
from metamirror.estimators.inputs.images import Reader, labelled_images

MOST_IMAGES = 10_000_000

Part = tuple[Any, list[str], str | None]
"""Some images, the class of each, and their split."""


def embed(
    backbone: Any,
    data: str,
    out: Path,
    *,
    image_size: int | None = None,
    data_dir: Path | None = None,
) -> tuple[int, ...]:
    """Write the features of a data set or of a folder of images, and return their shape.

    What was computed before is kept (`feature_cache`), so that an interrupted call goes on.

    Args:
        backbone: what `open_backbone` takes.
        data: a data set's name; or a folder with a sub-folder for each class, or with such folders
            in train, val and test, whose images are read in full size.
        out: the file, .npz: x has the features, y the classes, split their splits if known.
        image_size: height and width in which a data set is read, if other than stored.
        data_dir: where installed data live.
    """
    reader = open_backbone(backbone)
    folder = expanded(data)
    if folder.is_dir():
        if image_size is not None:
            raise ValueError(f"image_size is {image_size}; the images of {data} keep their size")
        parts = list(_of_folder(folder))
    else:
        parts = list(_of_set(open_images(data, image_size=image_size, data_dir=data_dir)))
    x, y, splits = _features(reader, parts, data)
    arrays: dict[str, NDArray[Any]] = {"x": x, "y": np.array(y)}
    if None not in splits:
        arrays["split"] = np.array(splits)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    write_atomically(out, content.getvalue())
    return x.shape


def _features(
    reader: Reader, parts: list[Part], title: str
) -> tuple[NDArray[np.float32], list[str], list[str | None]]:
    x: list[NDArray[np.float32]] = []
    y: list[str] = []
    splits: list[str | None] = []
    with Progress(f"features of {title}", sum(len(labels) for _, labels, _ in parts)) as progress:
        for images, labels, split in parts:
            for start in range(0, len(labels), AT_ONCE):
                piece = images[start : min(start + AT_ONCE, len(labels))]
                x.append(reader.read(piece).numpy().astype(np.float32))
                progress.update(len(y) + start + len(piece), labels[start])
            y += labels
            splits += [split] * len(labels)
    return np.concatenate(x), y, splits


def _of_folder(folder: Path) -> Iterator[Part]:
    """Yield the images of a folder, file by file."""
    found: list[str | None] = [split for split in SPLITS if (folder / split).is_dir()]
    for split in found or [None]:
        inside = folder if split is None else folder / split
        files, labels = labelled_images(inside, MOST_IMAGES)
        yield files, labels, split


class _Class:
    """The images of one class, read when they are asked for."""

    def __init__(self, images: ImageSet, start: int, turns: int):
        self.images, self.start, self.turns = images, start, turns

    def __getitem__(self, part: slice) -> NDArray[Any]:
        rows = np.arange(self.start + part.start, self.start + part.stop)
        return np.rot90(self.images.read(rows), self.turns, axes=(-2, -1)).copy()


def _of_set(images: ImageSet) -> Iterator[Part]:
    """Yield the images of a data set, class by class."""
    if np.dtype(images.pixels.dtype) != np.uint8:
        raise ValueError(f"{images.name} holds no images: it needs no backbone")
    for one in images.classes:
        yield _Class(images, one.start, one.turns), [one.name] * one.count, one.split
