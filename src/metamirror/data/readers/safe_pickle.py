"""Pickles of data, read without running them.

A pickle is a program: `pickle.load` calls whatever function it names. The files in which few-shot
data sets are passed around need containers, strings, numbers and numpy arrays only. `_Reader` is
the standard library's reader in Python with a list of allowed instructions and functions; in place
of numpy's functions stand some that measure the bytes before they believe a shape.

`pickle.Unpickler` with `find_class` alone would not do: written in C, it takes memory for any
length and any memo index that a file claims, a nested key overflows its stack, and it calls numpy's
`__setstate__`, which takes memory for any shape and follows any dtype.
"""

import io
import math
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Unpickler: Any = pickle._Unpickler  # typeshed does not know its stack

_MOST = 20_000_000
"""The most containers and remembered objects: tieredImageNet has five million."""

_MAX_DEPTH = 50
_MAX_DIMENSIONS = 32
_DTYPE = re.compile(r"O[48]?|[biufcSU][0-9]{1,9}")
_KEYS = (str, bytes, int, float, type(None), np.generic)
_PLAIN = (*_KEYS, bytearray, np.ndarray, np.dtype)

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_FUNCTIONS = {
    "_reconstruct": _MULTIARRAY,
    "scalar": _MULTIARRAY,
    "_frombuffer": ("numpy.core.numeric", "numpy._core.numeric"),
    "ndarray": ("numpy",),
    "dtype": ("numpy",),
    "OrderedDict": ("collections",),
    "encode": ("_codecs",),
    "bytes": ("builtins", "__builtin__"),
}
"""Every function that a pickle may name, with the modules that it may be said to come from."""

_COUNTED = """
    MARK EMPTY_LIST EMPTY_DICT TUPLE1 TUPLE2 TUPLE3 REDUCE PUT BINPUT LONG_BINPUT MEMOIZE
    GET BINGET LONG_BINGET
"""
_UNCOUNTED = """
    PROTO FRAME STOP POP POP_MARK GLOBAL STACK_GLOBAL NONE NEWTRUE NEWFALSE
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE LIST APPEND APPENDS
    BUILD BYTEARRAY8 SETITEM SETITEMS DICT
"""
"""The instructions that are allowed. None builds objects of any class, since `_Reader` has its own
versions of the last five; the others are the standard library's."""


class UnsafePickle(ValueError):  # noqa: N818
    """A pickle that holds more than data, or grows beyond its size."""


class DamagedPickle(ValueError):  # noqa: N818
    """A pickle that was cut short, or contradicts itself."""


def load(data: bytes, name: str) -> object:
    """Return the containers, strings, numbers and arrays of a pickle of any protocol.

    Arrays are read-only views. An array of objects in one dimension becomes a list, an OrderedDict
    a dict, and a string of Python 2 bytes.

    >>> load(pickle.dumps({"labels": [3, 1], "data": np.arange(2)}), "train.pkl")
    {'labels': [3, 1], 'data': array([0, 1])}
    """
    try:
        reader = _Reader(data)
        value = reader.load()
        if reader.stack or reader.metastack:
            raise ValueError("it leaves more than one value")
        _check_plain(value, len(data))
    except _Refused as error:
        raise UnsafePickle(
            f"{name} holds {error}, and is not read: a pickle can run any program on your machine, "
            f"so only containers, strings, numbers and numpy arrays are accepted. If you trust "
            f"whoever made it, load it with pickle yourself and save its arrays in a new pickle"
        ) from error
    except Exception as error:  # whatever contradiction Python or numpy found
        raise DamagedPickle(
            f"{name} is damaged or no pickle: {str(error) or type(error).__name__}; download or "
            f"copy it again"
        ) from error
    return value


class _Refused(Exception):  # noqa: N818
    """Something that a pickle of data has no reason to hold."""


def _check_plain(value: object, size: int) -> None:
    """Look at every value once for every place it stands in, level by level.

    A few bytes can say that a list holds the one before twice, and so on: small until printed.
    """
    level: list[object] = [value]
    seen = 0
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            elif not isinstance(item, _PLAIN):
                raise _Refused("a function or an unfinished object")
            if seen + len(below) > 4 * size + 1000:
                raise _Refused("containers that repeat one another too often")
        if not below:
            return
        seen += len(below)
        level = below
    raise _Refused(f"containers nested more than {_MAX_DEPTH} deep")


class _Unfinished:
    """An array or a dtype before its state, which a pickle gives in a second instruction."""

    value: object = None

    def __init__(self, finish: Callable[[object], object]):
        self.finish = finish


class _Instructions(dict[int, Callable[["_Reader"], None]]):
    def __missing__(self, code: int) -> Callable[["_Reader"], None]:
        raise _Refused(f"the instruction {chr(code)!r}")


class _Reader(_Unpickler):  # type: ignore[misc]
    dispatch = _Instructions()

    def __init__(self, data: bytes):
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.objects = 0
        # Every byte may be copied or checked twice; only an attack needs more.
        self._allowance = 2 * len(data) + 2**20

    def _spend(self, count: int) -> None:
        self._allowance -= count
        if self._allowance < 0:
            raise _Refused("instructions that make it grow beyond its size")

    def find_class(self, module: str, name: str) -> Any:
        if module not in _FUNCTIONS.get(name, ()):
            raise _Refused(f"the global {module[:80]}.{name[:80]}")
        return getattr(self, f"make_{name.strip('_')}")

    # The instructions that need more care than the standard library takes.

    def load_build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, _Unfinished):
            raise _Refused(f"a state for a {type(target).__name__}")
        target.value = self.stack[-1] = target.finish(state)

    def load_bytearray8(self) -> None:
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._set(self.stack[-1], items)

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set(self.stack[-1], items)

    def _set(self, target: object, items: Sequence[Any]) -> None:
        if not isinstance(target, dict):
            raise ValueError("it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Python hashes tuples in tuples without counting how deep, and a deep one crashes it.
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, _KEYS) for part in parts):
                raise _Refused(f"a {type(key).__name__} as a key")
            target[key] = value

    # What is called in place of the functions of the same names.

    def make_ndarray(self, *_: object) -> object:
        raise _Refused("a call of ndarray, which is only to be named")

    def make_bytes(self) -> bytes:
        return b""

    def make_encode(self, value: object, encoding: object) -> bytes:
        """Return bytes as Python 3 writes them for Python 2."""
        if not isinstance(value, str) or _word(encoding) not in ("latin1", "latin-1"):
            raise _Refused("an encoding other than latin1")
        self._spend(len(value))
        return value.encode("latin-1")

    def make_OrderedDict(self, pairs: object = ()) -> object:  # noqa: N802
        found: dict[Any, Any] = {}
        if not isinstance(pairs, list | tuple):
            raise ValueError("an OrderedDict of no list")
        self._spend(8 * len(pairs))
        for pair in pairs:
            self._set(found, pair)
        return found

    def make_dtype(self, code: object, *_: object) -> _Unfinished:
        name = _word(code)
        if not _DTYPE.fullmatch(name):
            raise _Refused(f"the dtype {name!r}")
        dtype = np.dtype(object if name.startswith("O") else name)
        if dtype.itemsize == 0:
            raise ValueError(f"the dtype {name!r} has no bytes")

        def finish(state: object) -> object:
            if not isinstance(state, tuple) or len(state) < 7:
                raise ValueError("a dtype's state is incomplete")
            # The state: version, byte order, subarray, names, fields, size, alignment, flags.
            if any(part is not None for part in state[2:5]):
                raise _Refused("a dtype with fields")
            if _integers(state[5:6])[0] not in (-1, dtype.itemsize):
                raise ValueError(f"the dtype {dtype} claims another size")
            order = _word(state[1])
            if order not in ("<", ">", "|", "="):
                raise ValueError(f"{order!r} is no byte order")
            return dtype if order == "|" else dtype.newbyteorder(order)  # type: ignore[arg-type]

        return _Unfinished(finish)

    def make_reconstruct(self, *_: object) -> _Unfinished:
        def finish(state: object) -> object:
            if not isinstance(state, tuple) or len(state) not in (4, 5):
                raise ValueError("an array's state is incomplete")
            shape, dtype, columns_first, raw = state[-4:]
            return self.make_frombuffer(raw, dtype, shape, "F" if columns_first is True else "C")

        return _Unfinished(finish)

    def make_scalar(self, dtype: object, raw: object) -> object:
        found = self.make_frombuffer(raw, dtype, (1,), "C")
        if not isinstance(found, np.ndarray):
            raise _Refused("a scalar of objects")
        return found[0]

    def make_frombuffer(
        self, raw: object, dtype: object, shape: object, order: object, axes: object = None
    ) -> object:
        """Return a view of some bytes; of an array of objects in one dimension, the list."""
        if not isinstance(dtype, np.dtype):
            raise ValueError("an array has no dtype")
        sides = _integers(shape)
        if len(sides) > _MAX_DIMENSIONS or any(side < 0 for side in sides):
            raise ValueError(f"an array of {sides}")
        if dtype.hasobject:
            # What is in the list was read by the same rules: it is as safe as any other list.
            if not isinstance(raw, list) or sides != (len(raw),):
                raise _Refused("an array of objects in more than one dimension")
            return raw
        if not isinstance(raw, bytes | bytearray):
            raise ValueError(f"an array's bytes are a {type(raw).__name__}")
        if len(raw) != math.prod(sides) * dtype.itemsize:
            raise ValueError(f"{len(raw):,} bytes for an array of {sides} {dtype}")
        if dtype.kind == "U" and raw:
            self._spend(len(raw))
            letters = np.frombuffer(raw, np.dtype("u4").newbyteorder(dtype.byteorder))
            if letters.max() > 0x10FFFF:
                raise ValueError("an array of letters that do not exist")
        found = np.frombuffer(raw, dtype)
        if _word(order) == "K":  # its axes lie in memory in another order
            return found.reshape(sides).transpose(_integers(axes))
        return found.reshape(sides, order="F" if _word(order) == "F" else "C")


def _counted(instruction: Callable[[_Reader], None]) -> Callable[[_Reader], None]:
    def counted(reader: _Reader) -> None:
        reader.objects += 1
        if reader.objects > _MOST:
            raise _Refused(f"more than {_MOST:,} objects")
        instruction(reader)
        # From the memo comes what an object has become since it was put there.
        if reader.stack and isinstance(found := reader.stack[-1], _Unfinished):
            reader.stack[-1] = found if found.value is None else found.value

    return counted


for _name in (*_UNCOUNTED.split(), *_COUNTED.split()):
    _code = getattr(pickle, _name)[0]
    _instruction = getattr(_Reader, _Unpickler.dispatch[_code].__name__)
    _Reader.dispatch[_code] = _counted(_instruction) if _name in _COUNTED.split() else _instruction


def _word(value: object) -> str:
    """Return a short word, which Python 2 wrote as bytes."""
    if not isinstance(value, str | bytes) or len(value) > 20:
        # Not shown: to print a container of containers can take for ever.
        raise ValueError("something else stands in place of a word")
    return value if isinstance(value, str) else value.decode("ascii")


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or any(type(entry) is not int for entry in value):
        raise ValueError("a shape that does not consist of whole numbers")
    return value
