"""What a page may send, read strictly: a field too many is as wrong as one too few.

Written by hand: the first mistake ends the reading, and the answer gives its place, its value and
the rule. A validation library collects every mistake of a hostile request first.
"""

import base64
import binascii
import json
import unicodedata
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from starlette.exceptions import HTTPException

from metamirror.playground import limits
from metamirror.playground.images import Pixels, Strokes

# Invisible, and yet letters of Persian, Hindi and many emoji need them.
JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))


@dataclass(frozen=True)
class Adapt:
    """Adapt a start to the examples of each class; no lr means that of the start's training."""

    start: str
    steps: int
    lr: float | None
    classes: dict[str, list[Pixels | Strokes]]

    @property
    def examples(self) -> int:
        """How many there are of all classes together."""
        return sum(map(len, self.classes.values()))


def read_adapt(body: bytes) -> Adapt:
    """Return the request to adapt from its JSON."""
    fields = _fields(_document(body), "the request", ("start", "steps", "lr", "classes"))
    classes: dict[str, list[Pixels | Strokes]] = {}
    given = _list(fields["classes"], "classes", limits.FEWEST_CLASSES, limits.MOST_CLASSES)
    for i, entry in enumerate(given):
        where = f"classes[{i}]"
        parts = _fields(entry, where, ("name", "examples"))
        name = _class_name(parts["name"], f"{where}.name")
        if name in classes:
            _refuse(f"two classes have the name {name!r}; give each its own")
        examples = _list(parts["examples"], f"{where}.examples", 1, limits.MOST_EXAMPLES)
        classes[name] = [_image(one, f"{where}.examples[{k}]") for k, one in enumerate(examples)]
    lr = fields["lr"]
    return Adapt(
        start=_text(fields["start"], "start"),
        steps=_number(fields["steps"], "steps", 0, limits.MOST_STEPS),
        lr=None if lr is None else _number(lr, "lr", 0.0, limits.LARGEST_LR),
        classes=classes,
    )


def read_predict(body: bytes, largest: int = limits.LARGEST_SIDE) -> Pixels | Strokes:
    """Return the image of a request to predict from its JSON; its sides have a largest length."""
    image = _fields(_document(body), "the request", ("image",))["image"]
    return _image(image, "image", largest)


def read_without(body: bytes) -> tuple[int, Pixels | Strokes]:
    """Return the number of the example that a request leaves out, and its image to predict."""
    fields = _fields(_document(body), "the request", ("example", "image"))
    most = limits.MOST_CLASSES * limits.MOST_EXAMPLES - 1
    return _number(fields["example"], "example", 0, most), _image(fields["image"], "image")


def _document(body: bytes) -> Any:
    def no_constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is not a number of JSON")

    try:
        return json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        # The decoder's words hold a position and no more of the body than a letter or a number.
        raise HTTPException(400, f"the request is not valid JSON: {str(error)[:200]}") from None


def _image(value: Any, where: str, largest: int = limits.LARGEST_SIDE) -> Pixels | Strokes:
    if isinstance(value, dict) and "strokes" in value:
        return _strokes(_fields(value, where, ("strokes",))["strokes"], f"{where}.strokes")
    fields = _fields(value, where, ("width", "height", "channels", "pixels"))
    width, height = (
        _number(fields[side], f"{where}.{side}", limits.SMALLEST_SIDE, largest)
        for side in ("width", "height")
    )
    channels = _number(fields["channels"], f"{where}.channels", 1, 3)
    count = width * height * channels
    try:
        pixels = base64.b64decode(_text(fields["pixels"], f"{where}.pixels", 4 * count), None, True)
    except (binascii.Error, ValueError):
        _refuse(f"{where}.pixels is not base64")
    if channels == 2 or len(pixels) != count:
        _refuse(
            f"{where}.pixels holds {len(pixels):,} bytes; {width} x {height} pixels of {channels} "
            f"channels have {count:,}, and channels are 1 or 3"
        )
    return np.frombuffer(pixels, np.uint8).reshape(height, width, channels)


def _strokes(value: Any, where: str) -> Strokes:
    lines, points = [], 0
    for i, line in enumerate(_list(value, where, 1, limits.MOST_STROKES)):
        spot = f"{where}[{i}]"
        points += len(_list(line, spot, 1, limits.MOST_POINTS))
        if points > limits.MOST_POINTS:
            _refuse(f"{where} has more than {limits.MOST_POINTS:,} points; draw less")
        pairs = [[_number(n, spot, 0.0, 1.0) for n in _list(point, spot, 2, 2)] for point in line]
        lines.append(np.array(pairs, np.float32))
    return lines


def _class_name(value: Any, where: str) -> str:
    name = unicodedata.normalize("NFC", _text(value, where, limits.NAME_LETTERS)).strip()
    if not name:
        _refuse(f"{where} is empty; give the class a name")
    # Adapted models and folders of images take their class names from each other.
    bare = name.translate(JOINERS)
    if bare in ("", ".", "..") or "/" in bare or "\\" in bare or not bare.isprintable():
        _refuse(f"{where} is {name!r}; a name has no slashes, control characters or dots alone")
    return name


def _fields(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(f"{where} is {_short(value)}; it must be an object with {', '.join(names)}")
    if missing := [name for name in names if name not in value]:
        _refuse(f"{where} lacks {missing[0]}")
    if unknown := [name for name in value if name not in names]:
        _refuse(f"{where} has a field {_short(unknown[0])}; its fields are {', '.join(names)}")
    return value


def _list(value: Any, where: str, fewest: int, most: int) -> list[Any]:
    if not isinstance(value, list):
        _refuse(f"{where} is {_short(value)}; it must be a list")
    if not fewest <= len(value) <= most:
        _refuse(f"{where} has {len(value):,} entries; it must have {fewest:,} to {most:,}")
    return value


def _text(value: Any, where: str, most: int = 100) -> str:
    if not isinstance(value, str):
        _refuse(f"{where} is {_short(value)}; it must be a text")
    if len(value) > most:
        _refuse(f"{where} has {len(value):,} letters; it may have {most:,}")
    return value


def _number(value: Any, where: str, least: float, most: float) -> Any:
    """Return a number within limits: a whole number where these are whole."""
    kinds, words = (int, "whole number") if isinstance(least, int) else (int | float, "number")
    # NaN lies in no interval.
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        _refuse(f"{where} is {_short(value)}; it must be a {words} from {least:g} to {most:g}")
    return type(least)(value)


def _short(value: Any) -> str:
    """Return a value for an answer: not all of it, and in letters that every encoding has."""
    words = ascii(value) if not isinstance(value, dict | list) else type(value).__name__
    return words if len(words) <= 60 else f"{words[:60]}..."


def _refuse(reason: str) -> NoReturn:
    raise HTTPException(422, reason)
