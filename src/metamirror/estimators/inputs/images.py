"""Pictures as users have them, made into what a network takes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from metamirror.data.readers.images import decode, fit, pixels_of
from metamirror.data.readers.packed import LIMIT, bounded
from metamirror.estimators.inputs.ink import drawn_on
from metamirror.estimators.sklearn_api import check_flag

ROUNDING = 1e-6
"""How far floats may lie outside [0, 1]: as far as rounding takes them."""


@dataclass(frozen=True)
class Pictures:
    """Reads arrays, tensors, PIL pictures and files for a network that takes pictures.

    Each picture is treated by itself. The middle square is scaled as the pictures of data sets
    are (`metamirror.data`); one that has the right size and channels keeps every bit.

    Attributes:
        channels: that the network takes, 1 or 3.
        size: height and width that it takes.
        invert: whether dark and light change places.
        ink: whether what is drawn on a picture is looked for, as `inputs.ink` does, in place of
            the middle square.
    """

    channels: int
    size: int
    invert: bool = False
    ink: bool = False

    def __post_init__(self) -> None:
        for name in ("invert", "ink"):
            check_flag(name, getattr(self, name))
        if self.ink and self.invert:
            raise ValueError("ink finds out by itself what is dark and what is light: no invert")
        if self.ink and self.channels != 1:
            raise ValueError("ink is for starts that take grey pictures, and this one has colours")

    def read(self, x: Any) -> Tensor:
        """(examples, channels, size, size), floats in [0, 1].

        >>> Pictures(1, 28).read([Image.new("RGB", (64, 48)), np.zeros((28, 28))]).shape
        torch.Size([2, 1, 28, 28])
        """
        if isinstance(x, str | bytes | os.PathLike | Image.Image):
            raise ValueError(f"X is {_short(x)}; give a list of pictures, even of one: [X]")
        rows = _rows(x)
        if rows is None:
            pixels = self._from_array(_numbers(x))
        else:
            pixels = np.concatenate([self._one(item, f"X[{i}]") for i, item in enumerate(rows)])
        return torch.from_numpy(1 - pixels if self.invert else pixels)

    def _one(self, item: Any, name: str) -> NDArray[np.float32]:
        size = None if self.ink else self.size
        if isinstance(item, Image.Image) and item.mode != "F":
            pixels = pixels_of(item, name, size, self.channels)
        elif isinstance(item, str | os.PathLike):
            name = str(item)
            pixels = decode(read_file(Path(item)), name, size, self.channels)
        else:
            # PIL's floats have no range of their own; ours have, and are looked at.
            return self._from_array(_numbers(item)[None], name)
        return _as_floats((self._drawn_on(pixels, name) if self.ink else pixels)[None])

    def _drawn_on(self, pixels: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        try:
            return drawn_on(pixels, self.size)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error

    def _from_array(self, array: NDArray[Any], name: str = "X") -> NDArray[np.float32]:
        if 0 in array.shape or array.ndim < 2:
            raise ValueError(f"{name} has shape {array.shape}; give at least one picture")
        array = _in_range(array, name)
        array = self._channels_last(array, name)
        if array.shape[1:] == (self.size, self.size, self.channels) and not self.ink:
            return _as_floats(array)
        if array.dtype != np.uint8:
            # A byte tells as many shades as a picture file has.
            array = np.rint(array * 255).clip(0, 255).astype(np.uint8)
        if self.ink:
            each = f"{name}[{{}}]" if len(array) > 1 else name
            found = [self._drawn_on(picture, each.format(i)) for i, picture in enumerate(array)]
        else:
            found = [fit(picture, self.size, self.channels) for picture in array]
        return _as_floats(np.stack(found))

    def _channels_last(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        shape = array.shape
        if array.ndim == 2:
            return self._unrolled(array)
        if array.ndim == 3 and shape[2] in (3, 4) and shape[0] > 1:
            # Pictures three pixels wide are none; one whose colours come last is a common slip.
            raise ValueError(
                f"{name} has shape {shape}, which is one picture: give a list, even of one: [X]"
            )
        if array.ndim == 3:
            array = array[..., None]
        elif array.ndim == 4 and shape[1] in (1, 3):
            array = np.moveaxis(array, 1, 3)
        if array.ndim != 4 or array.shape[3] not in (1, 3):
            raise ValueError(
                f"{name} has shape {shape}; pictures are (examples, height, width), or (examples, "
                f"channels, height, width) with 1 or 3 channels, first or last"
            )
        return array

    def _unrolled(self, array: NDArray[Any]) -> NDArray[Any]:
        """Pictures from rows of a table, as scikit-learn's tools hand them on."""
        examples, values = array.shape
        if values == self.channels * self.size**2:
            rows = array.reshape(examples, self.channels, self.size, self.size)
            return np.moveaxis(rows, 1, 3)
        side = math.isqrt(values)
        if side**2 != values:
            raise ValueError(
                f"X has rows of {values} values, which is no square picture: give pictures "
                f"(examples, height, width), or rows of {self.channels * self.size**2} values for "
                f"{self.channels} x {self.size} x {self.size}"
            )
        return array.reshape(examples, side, side, 1)


def read_file(path: Path) -> bytes:
    """The bytes of a picture file, if there are not too many of them."""
    try:
        with path.open("rb") as file:
            return bounded(file, LIMIT, str(path))
    except FileNotFoundError as error:
        raise ValueError(f"there is no picture {path}") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder: give the pictures in it") from error


def _rows(x: Any) -> list[Any] | None:
    """The pictures one by one, where they come that way; None for one array of all."""
    if hasattr(x, "__array__") and not isinstance(x, Tensor):
        # As a column of a data frame has them.
        array = np.asarray(x)
        x = list(array) if array.dtype.kind in "OUT" and array.ndim == 1 else array
    single = (str, os.PathLike, Image.Image, np.ndarray, Tensor)
    if isinstance(x, list | tuple) and any(isinstance(item, single) for item in x):
        return list(x)
    return None


def _numbers(x: Any) -> NDArray[Any]:
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        # numpy does not know every type of torch.
        x = (x.float() if x.is_floating_point() else x).numpy()
    if hasattr(x, "toarray"):
        raise ValueError("X is a sparse matrix; pictures are dense: X.toarray()")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"X does not make an array: {error}") from error


def _in_range(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Bytes, or single-precision floats in [0, 1]."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} is {array.dtype}")
    if array.dtype.kind not in "bf":
        raise ValueError(
            f"{name} holds {array.dtype}; pictures are bytes in 0..255 (uint8) or floats in 0..1"
        )
    array = array.astype(np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name} holds NaN or inf, first {array[where]} at index {where}")
    low, high = float(array.min()), float(array.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise ValueError(
            f"{name} holds floats from {low:g} to {high:g}; pictures are floats in 0..1 or bytes "
            f"(uint8) in 0..255: divide by the largest possible value, or convert"
        )
    return array


def _as_floats(array: NDArray[Any]) -> NDArray[np.float32]:
    """Channels first."""
    pixels = np.moveaxis(array, 3, 1)
    if array.dtype == np.uint8:
        return pixels.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(pixels, dtype=np.float32)


def _short(x: Any) -> str:
    return repr(x) if len(repr(x)) < 60 else type(x).__name__
