"""Names of the user's own things, `package.module:attribute`, wherever a name is taken.

A name may come from a file, and a file runs no code: what it names is found only in modules that
the user has allowed, by `--import` or by naming them on the command line.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_ALLOWED: set[str] = set()
NOTHING: Mapping[str, Any] = MappingProxyType({})


def split_path(spec: str) -> tuple[str, str, str] | None:
    """Return module, attribute and what follows them; None if a name is no import path.

    >>> split_path("mine.networks:build:depth=3")
    ('mine.networks', 'build', 'depth=3')
    >>> split_path("vit:depth=6")
    """
    module, _, rest = spec.partition(":")
    attribute, _, options = rest.partition(":")
    parts = [*module.split("."), attribute]
    return (module, attribute, options) if all(map(str.isidentifier, parts)) else None


def allow_module(name: str) -> None:
    """Import a module, from the current folder or an installed package; let names refer to it."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # Last, so that a file here hides nothing that is installed; worker processes inherit it.
        sys.path.append(here)
    try:
        importlib.import_module(name)
    except Exception as error:  # whatever a user's code raises
        absent = isinstance(error, ImportError) and error.name in (name, name.split(".")[0])
        if absent or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"there is no module {name!r} in {here} or among the installed packages: give a "
                f"name as in Python's import, without .py"
            ) from error
        raise ValueError(
            f"importing {name} failed: {type(error).__name__}: {error}; mend the module, or leave "
            f"it out"
        ) from error
    _ALLOWED.add(name)


def missing(modules: Iterable[str]) -> list[str]:
    """Return those of some modules that are not allowed."""
    return [name for name in modules if name not in _ALLOWED]


def find(spec: str, what: str) -> Any:
    """Return what an import path names, in a module that is allowed."""
    path = split_path(spec)
    if path is None:
        raise ValueError(f"{what} is {spec!r}; one of your own is named package.module:attribute")
    module, attribute, _ = path
    if module not in _ALLOWED:
        raise ValueError(
            f"{what} is {spec!r}, of a module of your own that this process was not told to "
            f"import: add --import {module}, or in Python metamirror.allow_module({module!r})"
        )
    try:
        return getattr(sys.modules[module], attribute)
    except AttributeError:
        names = ", ".join(name for name in vars(sys.modules[module]) if name[0] != "_")
        raise ValueError(f"{module} has no {attribute!r}; it has {names}") from None


def called(
    function: Any, spec: str, offered: Mapping[str, Any], asked: Mapping[str, Any] = NOTHING
) -> Any:
    """Call a function of the user's with those of the offered arguments that it takes.

    It must take what is `asked` of it.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(**{**offered, **asked})
    names = [p.name for p in parameters]
    if odd := [name for name in asked if name not in names]:
        raise ValueError(f"{spec} takes no {odd[0]!r}; it takes {', '.join(names)}")
    offered = {**offered, **asked}
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if unknown := [name for name in needed if name not in offered]:
        raise ValueError(
            f"{spec} wants {unknown[0]!r}, which is not known here: give it a default; known are "
            f"{', '.join(offered)}"
        )
    return function(**{p.name: offered[p.name] for p in parameters if p.name in offered})


@dataclass(frozen=True)
class Named:
    """A function of the user's own that remembers its import path, so that a file can name it."""

    spec: str
    function: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)
