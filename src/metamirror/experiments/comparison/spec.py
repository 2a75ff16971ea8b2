"""What the user asked to compare, read from the words of a command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from metamirror.core.option_spec import convert, split_specs
from metamirror.core.settings import Settings
from metamirror.data.sizes import Count, as_count
from metamirror.experiments.comparison.search import Search
from metamirror.methods import METHODS, check_method, find_method
from metamirror.training.config import RunConfig

Value = TypeVar("Value", int, float)
Recipes = Literal["common", "authors"]


@dataclass(frozen=True)
class Spec:
    """What is to be compared, and where.

    Attributes:
        base: the settings that all runs share.
        methods: as in `read_methods`.
        shots: one column group each.
        out: where runs, tables and the report go.
        seeds: how many, with exceptions by row, such as 1,maml=3,blockiaf=3.
        lr: inner step sizes; as in `0.05,maml=0.1`.
        recipes: train all methods alike, or each as its authors did where that is known.
        controls: add the rows without which nobody can say that a geometry helped.
        test_tasks: test tasks, the same for all rows.
        search: how to find the step sizes, if they are not given.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
        log: trackers that get the figures of every run, such as tensorboard,mlflow,wandb,csv.
    """

    base: RunConfig
    methods: Sequence[str]
    shots: Sequence[Count]
    out: Path = Path()
    seeds: str = "1"
    lr: str = ""
    recipes: Recipes = "common"
    controls: bool = True
    test_tasks: int = 600
    search: Search | None = None
    device: str = "auto"
    data_dir: Path | None = None
    log: str = ""

    def seeds_of(self, labels: Sequence[str]) -> "PerRow[int]":
        """Return how many seeds each row has."""
        seeds = read_per_row("seeds", self.seeds, 1, labels)
        if (fewest := min(seeds.values())) < 1:
            raise ValueError(f"seeds is {fewest}; it must be at least 1")
        return seeds

    def lr_of(self, methods: Mapping[str, str]) -> "PerRow[float]":
        """Return the inner step size of each row, given its method, whose own may go before."""
        common = Settings.lr if self.base.lr is None else self.base.lr
        found = read_per_row("lr", self.lr, common, list(methods))
        for_all = any("=" not in word for word in self.lr.split(",") if word.strip())
        if self.base.lr is None and not for_all:
            for label, method in methods.items():
                if (own := find_method(method)[0].defaults.get("lr")) is not None:
                    found.setdefault(label, own)
        return found


class PerRow(dict[str, Value]):
    """Values by row; the one under "" is that of all other rows."""

    def __missing__(self, label: str) -> Value:
        return self[""]

    def __str__(self) -> str:
        return ", ".join(f"{label}: {v}" if label else str(v) for label, v in self.items())


def read_per_row(name: str, words: str, common: Value, labels: Sequence[str]) -> PerRow[Value]:
    """Return values from words such as `0.05,maml=0.1`: one for all, then exceptions by row."""
    given = PerRow({"": common})
    seen = set()
    for word in filter(None, (w.strip() for w in words.split(","))):
        label, equals, value = word.rpartition("=")
        whose = f"{name} of {label}" if equals else name
        if equals and label not in labels:
            raise ValueError(f"{name} is given for {label!r}; the rows are {', '.join(labels)}")
        if label in seen:
            # Such as 0,1,2, meant as a list: none of them may be dropped in silence.
            raise ValueError(
                f"{whose} is given twice in {words!r}; give one for all rows, then exceptions by "
                f"row, as in 1,maml=3"
            )
        seen.add(label)
        given[label] = convert(whose, value, type(common))
    return given


def read_numbers(name: str, words: str, kind: type[Value]) -> tuple[Value, ...]:
    """Return numbers from a list such as `1,5`, none of them twice."""
    found = tuple(convert(name, word.strip(), kind) for word in words.split(",") if word.strip())
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{name} is {words!r}; give numbers such as 1,5, each once")
    return found


def read_counts(name: str, words: str) -> tuple[Count, ...]:
    """Return counts from a list such as `1,5` or `1,5-20`, none of them twice."""
    found = tuple(as_count(name, word) for word in words.split(",") if word.strip())
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{name} is {words!r}; give numbers such as 1,5, each once")
    return found


def read_methods(words: str) -> list[str]:
    """Return methods from a list such as `maml,blockiaf:variant=released`; `all` is all of them."""
    names = [name for name in split_specs(words) if name]
    if names == ["all"]:
        return list(METHODS)
    if not names:
        raise ValueError(f"methods is {words!r}; give all, or names such as maml,metasgd")
    for name in names:
        check_method(name)
        if names.count(name) > 1:
            raise ValueError(f"methods names {name} twice")
    return names
