"""The arrays in a pickle, from bytes that are measured before they are believed.

numpy restores an array by calling `__setstate__` on whatever the pickle holds, which takes memory
for any shape and follows any dtype. Here an array is a view of bytes that are already there, and
these must be as many as its shape and dtype say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

_CODE = re.compile(r"[biufcSU][0-9]{1,9}")
_MAX_DIMENSIONS = 32


class Refused(Exception):  # noqa: N818
    """Something that a pickle of data has no business to hold."""


class Unfinished:
    """An object between its construction and its state, which a pickle gives one after the other.

    Args:
        finish: what its state makes of it.
    """

    def __init__(self, finish: Callable[[object], object]):
        self.finish = finish
        self.places: list[int] = []
        """Where the memo refers to it."""


def word(value: object) -> str:
    """A short word, which Python 2 wrote as bytes."""
    if not isinstance(value, str | bytes) or len(value) > 20:
        # Not shown: to print a container of containers can take for ever.
        raise ValueError("something else stands in place of a word")
    return value if isinstance(value, str) else value.decode("ascii")


class Arrays:
    """What stands in for numpy's functions of the same names.

    Args:
        spend: is told how many bytes are copied or looked at, and objects to too many.
    """

    def __init__(self, spend: Callable[[int], None]):
        self._spend = spend

    def dtype(self, code: object, *_: object) -> Unfinished:
        """`dtype(code, align, copy)`; the byte order comes with the state."""
        name = word(code)
        if name in ("O", "O4", "O8"):
            return Unfinished(lambda state: np.dtype(object))
        if not _CODE.fullmatch(name):
            raise Refused(f"the dtype {name!r}")
        dtype = np.dtype(name)
        if dtype.itemsize == 0:
            raise ValueError(f"the dtype {name!r} has no bytes")
        return Unfinished(lambda state: _ordered(dtype, state))

    def reconstruct(self, *_: object) -> Unfinished:
        """`_reconstruct(ndarray, (0,), b"b")`: everything comes with the state."""
        return Unfinished(self._from_state)

    def _from_state(self, state: object) -> object:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise ValueError("an array's state is incomplete")
        shape, dtype, columns_first, raw = state[-4:]
        return self.from_buffer(raw, dtype, shape, "F" if columns_first is True else "C")

    def scalar(self, dtype: object, raw: object) -> object:
        """`scalar(dtype, bytes)`: one number, or one string."""
        found = self.from_buffer(raw, dtype, (1,), "C")
        if not isinstance(found, np.ndarray):
            raise Refused("a scalar of objects")
        return found[0]

    def from_buffer(
        self, raw: object, dtype: object, shape: object, order: object, axes: object = None
    ) -> object:
        """A view of some bytes; of an array of objects in one dimension, the list of them."""
        if not isinstance(dtype, np.dtype):
            raise ValueError("an array has no dtype")
        sides = _integers(shape)
        if len(sides) > _MAX_DIMENSIONS or any(side < 0 for side in sides):
            raise ValueError(f"an array of {sides}")
        if dtype.hasobject:
            # What is in the list was read by the same rules: it is as safe as any other list.
            if not isinstance(raw, list) or sides != (len(raw),):
                raise Refused("an array of objects in more than one dimension")
            return raw
        data = self._bytes(raw)
        if len(data) != math.prod(sides) * dtype.itemsize:
            raise ValueError(f"{len(data):,} bytes for an array of {sides} {dtype}")
        found = np.frombuffer(data, dtype)
        if dtype.kind == "U" and found.size:
            self._check_letters(data, dtype)
        if word(order) == "K":  # its axes lie in memory in another order
            return found.reshape(sides).transpose(_integers(axes))
        return found.reshape(sides, order="F" if word(order) == "F" else "C")

    def _bytes(self, raw: object) -> bytes | bytearray:
        if isinstance(raw, str):  # Python 2 kept them in a string
            self._spend(len(raw))
            return raw.encode("latin-1")
        if isinstance(raw, bytes | bytearray):
            return raw
        raise ValueError(f"an array's bytes are a {type(raw).__name__}")

    def _check_letters(self, data: bytes | bytearray, dtype: np.dtype[Any]) -> None:
        self._spend(len(data))
        letters = np.frombuffer(data, np.dtype("u4").newbyteorder(dtype.byteorder))
        if letters.max() > 0x10FFFF:
            raise ValueError("an array of letters that do not exist")


def _ordered(dtype: np.dtype[Any], state: object) -> np.dtype[Any]:
    if not isinstance(state, tuple) or len(state) < 7:
        raise ValueError("a dtype's state is incomplete")
    # The state: version, byte order, subarray, names, fields, size, alignment, flags.
    if any(part is not None for part in state[2:5]):
        raise Refused("a dtype with fields")
    if _integers(state[5:6])[0] not in (-1, dtype.itemsize):
        raise ValueError(f"the dtype {dtype} claims another size")
    order = word(state[1])
    if order not in ("<", ">", "|", "="):
        raise ValueError(f"{order!r} is no byte order")
    return dtype if order == "|" else dtype.newbyteorder(order)  # type: ignore[arg-type]


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or any(type(entry) is not int for entry in value):
        raise ValueError("a shape that does not consist of whole numbers")
    return value
