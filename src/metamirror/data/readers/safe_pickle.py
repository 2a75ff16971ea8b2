"""Pickles of data, read without running them.

A pickle is a program: `pickle.load` calls whatever function it names. The files in which few-shot
data sets are passed around need none of that, only containers, strings, numbers and numpy arrays.
This reads those by an interpreter of its own that can call nothing else, and whose memory is
bounded by the size of the file.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from metamirror.data.readers.pickled_arrays import Arrays, Refused, Unfinished, word

_MOST = 10_000_000
"""The most containers and remembered objects: tieredImageNet has two million."""

_MAX_DEPTH = 50

_KEYS = (str, bytes, int, float, type(None), np.generic)
_PLAIN = (*_KEYS, bytearray, np.ndarray, np.dtype)


class UnsafePickle(ValueError):  # noqa: N818
    """A pickle that holds more than data."""


class DamagedPickle(ValueError):  # noqa: N818
    """A pickle that was cut short, or contradicts itself."""


def load(data: bytes, name: str, *, encoding: Literal["bytes", "latin1"] = "bytes") -> object:
    """The containers, strings, numbers and arrays of a pickle of any protocol.

    Arrays are read-only views. An array of objects in one dimension comes as a list, and an
    OrderedDict as it is; nothing else is built.

    >>> load(pickle.dumps({"labels": [3, 1], "data": np.arange(2)}), "train.pkl")
    {'labels': [3, 1], 'data': array([0, 1])}

    Args:
        data: the file.
        name: what to call it in an error.
        encoding: what the strings of Python 2 become: bytes, or letters of Latin-1. The keys of
            CIFAR-100 are then `b"data"` or `"data"`.

    Raises:
        UnsafePickle: it holds more than data, or grows beyond its size.
        DamagedPickle: it cannot be read.
    """
    if encoding not in ("bytes", "latin1"):
        raise ValueError(f"encoding is {encoding!r}; it must be 'bytes' or 'latin1'")
    try:
        value = _Machine(data, encoding).run()
        _check_plain(value, len(data))
    except Refused as error:
        raise UnsafePickle(
            f"{name} holds {error}, and is not read: a pickle can run any program on your machine, "
            f"so only containers, strings, numbers and numpy arrays are accepted. If you trust "
            f"whoever made it, load it with pickle yourself and save its arrays in a new pickle"
        ) from error
    except Exception as error:  # whatever contradiction Python or numpy stumbled on
        raise DamagedPickle(
            f"{name} is damaged or no pickle: {error or type(error).__name__}; "
            f"download or copy it again"
        ) from error
    return value


def _check_plain(value: object, size: int) -> None:
    """Looks at every value once for every place it stands in, level by level.

    A few bytes can say that a list holds the one before twice, and that the one before twice, and
    so on. It is small until someone prints it.
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
                raise Refused("a function or an unfinished object")
            if seen + len(below) > 4 * size + 1000:
                raise Refused("containers that repeat one another too often")
        if not below:
            return
        seen += len(below)
        level = below
    raise Refused(f"containers nested more than {_MAX_DEPTH} deep")


def _check_key(key: object) -> None:
    """Python hashes tuples in tuples without counting how deep, and a deep one crashes it."""
    if not isinstance(key, _KEYS) and not (
        isinstance(key, tuple) and all(isinstance(part, _KEYS) for part in key)
    ):
        raise Refused(f"a {type(key).__name__} as a key")


class _Function:
    """What is done in the place of a function that a pickle may name."""

    def __init__(self, call: Callable[..., object] | None):
        self.call = call


class _Machine:
    """The stack machine of the pickle protocol, without its calls."""

    def __init__(self, data: bytes, encoding: str):
        self._data, self._encoding = data, encoding
        self._at = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0
        # Every byte may be copied or checked twice; more often only an attack needs.
        self._allowance = 2 * len(data) + 2**20
        arrays = Arrays(self._spend)
        self._functions: dict[str, _Function] = {
            name: _Function(call)
            for name, call in {
                "_reconstruct": arrays.reconstruct,
                "_frombuffer": arrays.from_buffer,
                "scalar": arrays.scalar,
                "dtype": arrays.dtype,
                "ndarray": None,  # only named, never called
                "OrderedDict": self._ordered_dict,
                "encode": self._encode,
                "bytes": lambda: b"",
            }.items()
        }

    def run(self) -> object:
        stop = pickle.STOP[0]
        while (code := self._take(1)[0]) != stop:
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise Refused(f"the instruction {chr(code)!r}")
            operation(self)
        if self._below or len(self._stack) != 1:
            raise ValueError("it leaves more or less than one value")
        return self._stack[0]

    # Reading.

    def _take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if count < 0 or self._at > len(self._data):
            raise ValueError("it ends within a value")
        return self._data[start : self._at]

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        line = self._take(end - self._at)
        self._at += 1
        return line

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _sized(self, form: str) -> bytes:
        return self._take(self._number(form))

    def _old_string(self, value: bytes) -> object:
        return value if self._encoding == "bytes" else value.decode("latin-1")

    def _protocol(self) -> None:
        if (version := self._number("<B")) > pickle.HIGHEST_PROTOCOL:
            raise ValueError(f"protocol {version} is not known")

    # The stack.

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _count_container(self) -> None:
        self._containers += 1
        if self._containers > _MOST:
            raise Refused(f"more than {_MOST:,} containers")

    def _push_container(self, value: object) -> None:
        self._count_container()
        self._stack.append(value)

    def _mark(self) -> None:
        self._count_container()
        self._below.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise ValueError("it takes more from its stack than there is")
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        return items

    # Containers.

    def _append(self, items: Sequence[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ValueError(f"it appends to a {type(target).__name__}")
        target.extend(items)

    def _set(self, items: Sequence[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _check_key(key)
            target[key] = value

    def _dict(self) -> None:
        items = self._since_mark()
        self._push_container({})
        self._set(items)

    # The memo.

    def _put(self, place: int) -> None:
        value = self._stack[-1]
        if isinstance(value, Unfinished):
            value.places.append(place)
        self._memo[place] = value
        if len(self._memo) > _MOST:
            raise Refused(f"more than {_MOST:,} remembered objects")

    def _get(self, place: int) -> None:
        if place not in self._memo:
            raise ValueError("it refers to what is not there")
        self._push(self._memo[place])

    # Calls, or what stands in for them.

    def _global(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a global without a name")
        if module not in _GLOBALS.get(name, ()):
            raise Refused(f"the global {module[:80]}.{name[:80]}")
        self._push(self._functions[name])

    def _reduce(self) -> None:
        function, arguments = self._last(2)
        if not isinstance(function, _Function) or function.call is None:
            raise Refused("a call of what is no function")
        if not isinstance(arguments, tuple):
            raise ValueError("a call without arguments")
        self._push_container(function.call(*arguments))

    def _build(self) -> None:
        target, state = self._last(2)
        if not isinstance(target, Unfinished):
            raise Refused(f"a state for a {type(target).__name__}")
        value = target.finish(state)
        for place in target.places:
            if self._memo[place] is target:
                self._memo[place] = value
        self._push(value)

    def _spend(self, count: int) -> None:
        self._allowance -= count
        if self._allowance < 0:
            raise Refused("instructions that make it grow beyond its size")

    def _encode(self, value: object, encoding: object) -> bytes:
        """How Python 3 writes bytes for Python 2."""
        if not isinstance(value, str) or word(encoding) not in ("latin1", "latin-1"):
            raise Refused("an encoding other than latin1")
        self._spend(len(value))
        return value.encode("latin-1")

    def _ordered_dict(self, pairs: object = ()) -> object:
        if not isinstance(pairs, list | tuple):
            raise ValueError("an OrderedDict of no list")
        self._spend(8 * len(pairs))
        found: OrderedDict[Any, Any] = OrderedDict()
        for key, value in pairs:
            _check_key(key)
            found[key] = value
        return found


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_GLOBALS = {
    "_reconstruct": _MULTIARRAY,
    "scalar": _MULTIARRAY,
    "_frombuffer": ("numpy.core.numeric", "numpy._core.numeric"),
    "ndarray": ("numpy",),
    "dtype": ("numpy",),
    "OrderedDict": ("collections",),
    "encode": ("_codecs",),
    "bytes": ("builtins", "__builtin__"),
}
"""Every global that is understood, with the modules that it may be said to come from."""


def _whole_number(line: bytes) -> int | bool:
    """Protocol 0 writes True as 01."""
    return {b"00": False, b"01": True}.get(line, int(line))


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"'": b"'", b'"': b'"'}


def _quoted(line: bytes) -> bytes:
    """A string as Python 2 prints it."""
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("a string without quotes")
    return _ESCAPE.sub(
        lambda found: bytes([int(found[1], 16)]) if found[1] else _ESCAPES[found[2]], line[1:-1]
    )


_OPERATIONS: dict[int, Callable[[_Machine], object]] = {
    code[0]: operation
    for code, operation in {
        pickle.PROTO: lambda m: m._protocol(),
        pickle.FRAME: lambda m: m._take(8),
        pickle.MARK: lambda m: m._mark(),
        pickle.POP: lambda m: m._last(1),
        pickle.POP_MARK: lambda m: m._since_mark(),
        # Constants and numbers.
        pickle.NONE: lambda m: m._push(None),
        pickle.NEWTRUE: lambda m: m._push(True),
        pickle.NEWFALSE: lambda m: m._push(False),
        pickle.INT: lambda m: m._push(_whole_number(m._line())),
        pickle.BININT: lambda m: m._push(m._number("<i")),
        pickle.BININT1: lambda m: m._push(m._number("<B")),
        pickle.BININT2: lambda m: m._push(m._number("<H")),
        pickle.LONG: lambda m: m._push(int(m._line().removesuffix(b"L"))),
        pickle.LONG1: lambda m: m._push(_signed(m._sized("<B"))),
        pickle.LONG4: lambda m: m._push(_signed(m._sized("<i"))),
        pickle.FLOAT: lambda m: m._push(float(m._line())),
        pickle.BINFLOAT: lambda m: m._push(m._number(">d")),
        # Strings of Python 2, bytes, and letters.
        pickle.STRING: lambda m: m._push(m._old_string(_quoted(m._line()))),
        pickle.BINSTRING: lambda m: m._push(m._old_string(m._sized("<i"))),
        pickle.SHORT_BINSTRING: lambda m: m._push(m._old_string(m._sized("<B"))),
        pickle.BINBYTES: lambda m: m._push(m._sized("<I")),
        pickle.SHORT_BINBYTES: lambda m: m._push(m._sized("<B")),
        pickle.BINBYTES8: lambda m: m._push(m._sized("<Q")),
        pickle.BYTEARRAY8: lambda m: m._push(bytearray(m._sized("<Q"))),
        pickle.UNICODE: lambda m: m._push(m._line().decode("raw-unicode-escape")),
        pickle.BINUNICODE: lambda m: m._push(m._sized("<I").decode()),
        pickle.SHORT_BINUNICODE: lambda m: m._push(m._sized("<B").decode()),
        pickle.BINUNICODE8: lambda m: m._push(m._sized("<Q").decode()),
        # Containers.
        pickle.EMPTY_TUPLE: lambda m: m._push(()),
        pickle.TUPLE: lambda m: m._push_container(tuple(m._since_mark())),
        pickle.TUPLE1: lambda m: m._push_container(m._last(1)),
        pickle.TUPLE2: lambda m: m._push_container(m._last(2)),
        pickle.TUPLE3: lambda m: m._push_container(m._last(3)),
        pickle.EMPTY_LIST: lambda m: m._push_container([]),
        pickle.LIST: lambda m: m._push_container(m._since_mark()),
        pickle.APPEND: lambda m: m._append(m._last(1)),
        pickle.APPENDS: lambda m: m._append(m._since_mark()),
        pickle.EMPTY_DICT: lambda m: m._push_container({}),
        pickle.DICT: lambda m: m._dict(),
        pickle.SETITEM: lambda m: m._set(m._last(2)),
        pickle.SETITEMS: lambda m: m._set(m._since_mark()),
        # The memo.
        pickle.PUT: lambda m: m._put(int(m._line())),
        pickle.BINPUT: lambda m: m._put(m._number("<B")),
        pickle.LONG_BINPUT: lambda m: m._put(m._number("<I")),
        pickle.MEMOIZE: lambda m: m._put(len(m._memo)),
        pickle.GET: lambda m: m._get(int(m._line())),
        pickle.BINGET: lambda m: m._get(m._number("<B")),
        pickle.LONG_BINGET: lambda m: m._get(m._number("<I")),
        # Calls.
        pickle.GLOBAL: lambda m: m._global(m._line().decode(), m._line().decode()),
        pickle.STACK_GLOBAL: lambda m: m._global(*m._last(2)),
        pickle.REDUCE: lambda m: m._reduce(),
        pickle.BUILD: lambda m: m._build(),
    }.items()
}
"""The protocol's instructions, less those that build objects of any class."""
