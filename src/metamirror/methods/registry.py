"""What a method is: three slots filled, options, and a line in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from torch import nn

from metamirror.geometry import Geometry
from metamirror.objectives import Objective
from metamirror.options import convert


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
            values[name] = convert(f"{self.key}:{name}", value, hints[name])
        return self.options(**values)


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Splits `key:option=value:option=value`.

    >>> parse_spec("blockiaf:variant=released:scale=exponential")
    ('blockiaf', {'variant': 'released', 'scale': 'exponential'})
    """
    key, *words = spec.split(":")
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{spec!r}: {word!r} should read option=value")
        if name in options:
            raise ValueError(f"{spec!r} gives {name} twice")
        options[name] = value
    return key, options
