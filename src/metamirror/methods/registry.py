"""What a method is: three slots filled, options, and a line in the table."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import nn

from metamirror.geometry import Geometry
from metamirror.objectives import Objective


@dataclass(frozen=True)
class Parts:
    """What a method puts into the learner's slots; None leaves the default."""

    model: nn.Module
    geometry: Geometry | None = None
    objective: Objective | None = None
    adapts: list[str] | None = None


@dataclass(frozen=True)
class NoOptions:
    """A method without options."""


@dataclass(frozen=True)
class Method:
    """A row of the registry.

    Attributes:
        key: the name users type.
        title: the name people say.
        optimizer: the lower-level optimiser, as in the paper's Table 1.
        geometry: the loss geometry model, as in the paper's Table 1.
        paper: who published it.
        build: (model, options, lr) -> the filled slots. The model is the learner's own copy.
        options: a frozen dataclass; its fields are what can follow the key.
        published: the accuracy that the paper's Table 1 lists for it, by shots.
    """

    key: str
    title: str
    optimizer: str
    geometry: str
    paper: str
    build: Callable[[nn.Module, Any, float], Parts]
    options: type = NoOptions
    published: Mapping[int, str] = field(default_factory=dict)

    def make_options(self, given: Mapping[str, Any]) -> Any:
        """The options object, from keywords or from the words of a command line."""
        hints = get_type_hints(self.options)
        known = [f.name for f in fields(self.options)]
        values = {}
        for name, value in given.items():
            if name not in known:
                rule = f"its options are {', '.join(known)}" if known else "it has no options"
                raise ValueError(f"{self.key} has no option {name!r}; {rule}")
            values[name] = _convert(f"{self.key}:{name}", value, hints[name])
        return self.options(**values)


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Splits `key:option=value:option=value`.

    >>> parse_spec("blockiaf:variant=released:scale=exponential")
    ('blockiaf', {'variant': 'released', 'scale': 'exponential'})
    """
    key, *words = spec.split(":")
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{spec!r}: {word!r} should read option=value")
        options[name] = value
    return key, options


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Value as the option's type; words are read, everything else must fit already."""
    if get_origin(kind) in (Union, types.UnionType):
        kinds = get_args(kind)
        if value is None and type(None) in kinds:
            return None
        errors = []
        for one in (k for k in kinds if k is not type(None)):
            try:
                return _convert(name, value, one)
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
