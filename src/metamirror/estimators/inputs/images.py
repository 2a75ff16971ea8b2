"""Images as users have them, made into what a network takes."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from metamirror.console import say
from metamirror.data.image_set import SUFFIXES
from metamirror.data.readers.archives import LIMIT, bounded
from metamirror.data.readers.images import decode, fit, pixels_of
from metamirror.estimators.inputs.ink import drawn_on
from metamirror.estimators.inputs.numbers import Numbers, as_array, check_finite, check_flag

ROUNDING = 1e-6  # how far floats may lie outside [0, 1]: as far as rounding takes them
MOST_IMAGES = 10_000
"""More than a few-shot task ever has: whoever gives a larger folder means another one."""


@dataclass(frozen=True)
class Images:
    """Reads arrays, tensors, PIL images and files for a network that takes images.

    Each image is treated by itself. The middle square is scaled as the images of data sets are
    (`metamirror.data`); an image of the right size and channels keeps every bit. `invert` exchanges
    dark and light; `ink` looks for what is drawn (`inputs.ink`), wherever it is.
    """

    channels: int
    size: int
    invert: bool = False
    ink: bool = False
    crop: float = 1.0  # the share of the middle square that is taken

    def __post_init__(self) -> None:
        check_flag("invert", self.invert)
        check_flag("ink", self.ink)
        if self.ink and self.invert:
            raise ValueError("ink finds out by itself what is dark and what is light: no invert")
        if self.ink and self.channels != 1:
            raise ValueError("ink is for starts that take grey images, and this one takes colour")

    def read(self, x: Any) -> Tensor:
        """Return (examples, channels, size, size), floats in [0, 1].

        >>> Images(1, 28).read([Image.new("RGB", (64, 48)), np.zeros((28, 28))]).shape
        torch.Size([2, 1, 28, 28])
        """
        rows = image_rows(x)
        if not isinstance(rows, list):
            pixels = self._scaled(self._array(rows, "X"), "X")
        else:
            pixels = np.concatenate([self._one(item, f"X[{i}]") for i, item in enumerate(rows)])
        return torch.from_numpy(1 - pixels if self.invert else pixels)

    def _one(self, item: Any, name: str) -> NDArray[np.float32]:
        if isinstance(item, str | os.PathLike):
            name = str(item)
            array = decode(_bytes_of(Path(item)), name, channels=self.channels)[None]
        elif isinstance(item, Image.Image) and item.mode != "F":
            array = pixels_of(item, name, self.channels)[None]
        else:
            # PIL's floats have no range of their own; those of arrays have one, which is checked.
            array = self._array(as_array(item, name)[None], name)
        return self._scaled(array, name)

    def _scaled(self, array: NDArray[Any], name: str) -> NDArray[np.float32]:
        """Return (examples, height, width, channels) in the network's size, channels first."""
        right = array.shape[1:] == (self.size, self.size, self.channels) and self.crop == 1
        if self.ink or not right:
            if array.dtype != np.uint8:
                # A byte has as many shades as an image file.
                array = np.rint(array * 255).clip(0, 255).astype(np.uint8)
            names = [f"{name}[{i}]" for i in range(len(array))] if len(array) > 1 else [name]
            array = np.stack([self.fit(row, n) for row, n in zip(array, names, strict=True)])
        pixels = np.moveaxis(array, 3, 1)
        if array.dtype == np.uint8:
            return pixels.astype(np.float32) / np.float32(255)
        return np.ascontiguousarray(pixels, dtype=np.float32)

    def fit(self, pixels: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Return an image (height, width, channels) in the network's size, or its ink alone."""
        if self.ink:
            return drawn_on(pixels, self.size, name)
        return fit(pixels, self.size, self.channels, self.crop)

    def _array(self, x: Any, name: str) -> NDArray[Any]:
        """Return bytes, or floats in [0, 1], as (examples, height, width, channels)."""
        array = _in_range(as_array(x, name), name)
        shape = array.shape
        if array.ndim == 2:
            # Rows of any length may be embeddings, and are no images unless the user says so.
            size = (self.channels, self.size, self.size)[self.channels == 1 :]
            fits = f", as X.reshape(-1, {', '.join(map(str, size))}) does"
            raise ValueError(
                f"X has rows of {shape[1]} values, and this start takes images: give them their "
                f"shape{fits if shape[1] == math.prod(size) else ''}, or for embeddings choose a "
                f"start that takes numbers"
            )
        if array.ndim == 3 and shape[2] in (3, 4) and shape[0] > 1:
            # No image is three pixels wide; one whose colours come last is a common slip.
            raise ValueError(
                f"{name} has shape {shape}, which is one image: give a list, even of one: [X]"
            )
        if array.ndim == 3:
            array = array[..., None]
        elif array.ndim == 4 and shape[1] in (1, 3):
            array = np.moveaxis(array, 1, 3)
        if array.ndim != 4 or array.shape[3] not in (1, 3):
            raise ValueError(
                f"{name} has shape {shape}; images are (examples, height, width), or (examples, "
                f"channels, height, width) with 1 or 3 channels, first or last"
            )
        return array


class Reader(Protocol):
    """What makes examples of X."""

    def read(self, x: Any) -> Tensor:
        """Return (examples, ...)."""


def image_shape(model: nn.Module) -> tuple[int, int] | None:
    """Return channels and size of the images that a model takes, if it states them."""
    channels, size = (getattr(model, name, None) for name in ("channels", "image_size"))
    return (channels, size) if isinstance(channels, int) and isinstance(size, int) else None


def reader_for(model: nn.Module, invert: bool, ink: bool) -> Reader:
    """Return the reader of a model's examples: of images where it takes them, else of numbers."""
    tokens = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())
    if shape := image_shape(model):
        return Images(*shape, invert, ink)
    for name, given in (("invert", invert), ("ink", ink)):
        if given:
            raise ValueError(f"{name} is for images, and this start takes none: leave it out")
    return Numbers(integers=tokens)


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return bounded(file, LIMIT, str(path))
    except FileNotFoundError as error:
        raise ValueError(f"there is no image {path}") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder: give the images in it") from error


def open_image(path: Path) -> Image.Image:
    """Return the image of a file in colour, upright, on white where it is transparent."""
    return Image.fromarray(decode(_bytes_of(path), str(path), channels=3))


def image_rows(x: Any) -> Any:
    """Return a list of images where they come one by one, otherwise one array of all."""
    if isinstance(x, str | bytes | os.PathLike | Image.Image):
        words = repr(x) if len(repr(x)) < 60 else type(x).__name__
        raise ValueError(f"X is {words}; give a list of images, even of one: [X]")
    if hasattr(x, "__array__") and not isinstance(x, Tensor):
        # As a column of a data frame has them.
        array = np.asarray(x)
        return list(array) if array.dtype.kind in "OUT" and array.ndim == 1 else array
    single = (str, os.PathLike, Image.Image, np.ndarray, Tensor)
    if isinstance(x, list | tuple) and any(isinstance(item, single) for item in x):
        return list(x)
    return x if isinstance(x, Tensor) else as_array(x, "X")


def _in_range(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return bytes, or single-precision floats in [0, 1]."""
    if 0 in array.shape or array.ndim < 2:
        raise ValueError(f"{name} has shape {array.shape}; give at least one image")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "bf":
        raise ValueError(
            f"{name} holds {array.dtype}; images are bytes in 0..255 (uint8) or floats in 0..1. "
            f"Tokens stay integers where the backbone is a function, or a module with nn.Embedding"
        )
    array = array.astype(np.float32)
    check_finite(array, name)
    low, high = float(array.min()), float(array.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise ValueError(
            f"{name} holds floats from {low:g} to {high:g}; images are floats in 0..1 or bytes "
            f"(uint8) in 0..255: divide by the largest possible value, or convert"
        )
    return array


def labelled_images(folder: Path, most: int = MOST_IMAGES) -> tuple[list[Path], list[str]]:
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
        if len(paths) > most:
            raise ValueError(f"{folder} holds more than {most:,} images; give a few")
    if not paths:
        raise ValueError(f"{folder} has no sub-folders: {folder}/CLASS/image.png is expected")
    if unused:
        say(f"{len(unused)} files of {folder} are not used, such as {unused[0]}")
    return paths, labels
