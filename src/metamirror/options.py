"""Values from the words of a command line or the fields of a file, checked against a type."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin


def convert(name: str, value: Any, kind: Any) -> Any:
    """Value as the option's type; words are read, everything else must fit already."""
    if get_origin(kind) in (Union, types.UnionType):
        kinds = get_args(kind)
        if value is None and type(None) in kinds:
            return None
        errors = []
        for one in (k for k in kinds if k is not type(None)):
            try:
                return convert(name, value, one)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError("; or ".join(errors))
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(map(repr, get_args(kind)))}")
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ValueError(f"{name} is {value!r}; give true or false")
    if kind in (int, float):
        if isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; give a number")
        try:
            number = kind(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is {value!r}; give a number") from error
        if kind is int and isinstance(value, float) and value != number:
            raise ValueError(f"{name} is {value!r}; give a whole number")
        return number
    if kind is str:
        if isinstance(value, str):
            return value
        raise ValueError(f"{name} is {value!r}; give a word")
    if isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; this option can only be given in Python")
    return value
