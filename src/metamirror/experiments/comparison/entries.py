"""The rows of a comparison: its methods, and the controls without which they say little."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from metamirror.methods import METHODS, find_method
from metamirror.training.config import RunConfig

Kind = Literal["method", "control"]
Recipes = Literal["common", "authors"]

BASELINE = "maml"
"""What the other rows are compared with, task by task."""
HEAD_ONLY = "anil"
DIAGONAL, AS_TRAINED = "metasgd", "blockiaf"
"""The control of a learned map: the simplest geometry, trained exactly as the map is."""


@dataclass(frozen=True)
class Entry:
    """A row whose runs are trained.

    Attributes:
        label: its name in the table; a method's key, with options where there are some.
        method: as in a run's configuration.
        title: what people call it.
        kind: whether it competes or is there to be beaten.
        outer: settings of the outer level in place of the common ones.
        same_as: the row whose runs these are, where it would be trained twice otherwise.
    """

    label: str
    method: str
    title: str
    kind: Kind
    outer: Mapping[str, Any] = field(default_factory=dict)
    same_as: str | None = None

    @property
    def runs(self) -> str:
        """The label of the row under which its runs are kept."""
        return self.same_as or self.label


def read_methods(words: str) -> list[str]:
    """Methods from a list such as `maml,blockiaf:variant=released`; `all` is the registry."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if names == ["all"]:
        return list(METHODS)
    if not names:
        raise ValueError(f"methods is {words!r}; give all, or names such as maml,metasgd")
    for name in names:
        method, options = find_method(name)
        method.make_options(options)
        if names.count(name) > 1:
            raise ValueError(f"methods names {name} twice")
    return names


def make_entries(
    methods: Sequence[str], iterations: int, *, recipes: Recipes, controls: bool
) -> list[Entry]:
    """Rows in the order of the table: methods as given, controls behind them."""
    wanted = list(methods)
    if controls and HEAD_ONLY not in wanted:
        wanted.append(HEAD_ONLY)
    entries = [_entry(name, iterations, recipes) for name in wanted]
    if controls and any(find_method(name)[0].key == AS_TRAINED for name in wanted):
        entries.append(_trained_alike(entries, iterations, recipes))
    return sorted(entries, key=lambda entry: entry.kind == "control")


def _entry(name: str, iterations: int, recipes: Recipes) -> Entry:
    method, options = find_method(name)
    words = ", ".join(f"{key}={value}" for key, value in options.items())
    return Entry(
        label=name,
        method=name,
        title=f"{method.title} ({words})" if words else method.title,
        kind="control" if method.key == HEAD_ONLY else "method",
        outer=recipe(method.key, iterations) if recipes == "authors" else {},
    )


def _trained_alike(entries: Sequence[Entry], iterations: int, recipes: Recipes) -> Entry:
    """MetaSGD trained as blockIAF is: the row of MetaSGD itself, where all are trained alike."""
    outer = recipe(AS_TRAINED, iterations) if recipes == "authors" else {}
    twins = [e.label for e in entries if e.method == DIAGONAL and e.outer == outer]
    return Entry(
        label=f"{DIAGONAL}-as-{AS_TRAINED}",
        method=DIAGONAL,
        title=f"{METHODS[DIAGONAL].title}, trained as {METHODS[AS_TRAINED].title}",
        kind="control",
        outer=outer,
        same_as=twins[0] if twins else None,
    )


def recipe(key: str, iterations: int) -> dict[str, Any]:
    """The authors' settings of the outer level, their schedule stretched to these iterations."""
    found = dict(METHODS[key].recipe)
    if "decay_every" in found:
        found["decay_every"] = max(1, found["decay_every"] * iterations // RunConfig.iterations)
    return found


def file_name(label: str) -> str:
    """A label as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", label)
