"""The grid of a comparison: every run that it is made of, with its whole configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from metamirror.core.option_spec import convert
from metamirror.data import TaskStream
from metamirror.experiments.comparison.entries import Entry, file_name
from metamirror.training.config import RunConfig, difference, load_config
from metamirror.training.factory import build_stream
from metamirror.training.run_folder import MAY_DIFFER

Value = TypeVar("Value", int, float)
SPLITS = ("train", "val", "test")
CELLS = "cells"


@dataclass(frozen=True)
class PerRow(Generic[Value]):
    """One value for all rows, and others for some of them."""

    common: Value
    apart: Mapping[str, Value]

    def of(self, label: str) -> Value:
        """The value of a row."""
        return self.apart.get(label, self.common)

    def __str__(self) -> str:
        return ", ".join([str(self.common), *(f"{k}: {v}" for k, v in self.apart.items())])


def read_per_row(name: str, words: str, common: Value, labels: Sequence[str]) -> PerRow[Value]:
    """Values from words such as `0.05,maml=0.1`: one for all, then exceptions by row."""
    given: dict[str, Value] = {}
    for word in filter(None, (w.strip() for w in words.split(","))):
        label, equals, value = word.rpartition("=")
        whose = f"{name} of {label}" if equals else name
        if equals and label not in labels:
            raise ValueError(f"{name} is given for {label!r}; the rows are {', '.join(labels)}")
        if label in given:
            # Such as 0,1,2, meant as a list: none of them may be dropped in silence.
            raise ValueError(
                f"{whose} is given twice in {words!r}; give one for all rows, then exceptions by "
                f"row, as in 1,maml=3"
            )
        given[label] = convert(whose, value, type(common))
    return PerRow(given.pop("", common), given)


def read_numbers(name: str, words: str, kind: type[Value]) -> tuple[Value, ...]:
    """Numbers from a list such as `1,5`, none of them twice."""
    found = tuple(convert(name, word.strip(), kind) for word in words.split(",") if word.strip())
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{name} is {words!r}; give numbers such as 1,5, each once")
    return found


@dataclass(frozen=True)
class Rates:
    """The step sizes that a search may choose: the inner one, the outer one of the geometry."""

    lr: float
    geometry_lr: float | None = None

    def beside(self, usual: float | None) -> float | None:
        """The outer step size of the geometry. Zero is one too: it holds the geometry still."""
        return usual if self.geometry_lr is None else self.geometry_lr


@dataclass(frozen=True)
class Cell:
    """One run of the grid: an ordinary run folder."""

    label: str
    config: RunConfig

    @property
    def name(self) -> str:
        """Of its folder."""
        config = self.config
        return f"{file_name(self.label)}-{config.shots}shot-seed{config.seed}"

    @property
    def folder(self) -> str:
        """Where it is, below the folder of the comparison."""
        return f"{CELLS}/{self.name}"


def open_streams(
    base: RunConfig, shots: Sequence[int], data_dir: Path | None
) -> dict[tuple[str, int], TaskStream]:
    """The tasks of every split, so that what is missing is said before anything is trained."""
    return {
        (split, count): build_stream(replace(base, shots=count), split, batch=1, data_dir=data_dir)
        for split in SPLITS
        for count in shots
    }


def cell_of(
    entry: Entry, base: RunConfig, *, shots: int, seed: int, rates: Rates, extra: int
) -> Cell:
    """A run: the common settings, with what its row and its place in the grid decide."""
    config = replace(
        base,
        method=entry.method,
        shots=shots,
        seed=seed,
        lr=rates.lr,
        # A step size for nothing would be refused.
        geometry_lr=rates.beside(base.geometry_lr) if extra else None,
        **entry.outer,
    )
    config.check()
    return Cell(entry.runs, config)


def refuse_others(cells: Sequence[Cell], out: Path) -> None:
    """Refuses to go on in a folder whose runs were started with other settings."""
    for cell in cells:
        folder = out / cell.folder
        try:
            stored = load_config(folder)
        except (ValueError, OSError):
            # Not begun; or damaged, which is that run's failure and nobody else's.
            continue
        for key in difference(cell.config, stored):
            ours, theirs = getattr(cell.config, key), getattr(stored, key)
            shorter = key == "iterations" and (ours < theirs or cell.config.schedule == "cosine")
            if shorter or key not in MAY_DIFFER:
                raise ValueError(
                    f"{folder} was started with {key} {theirs}, not {ours}: give the same settings "
                    f"to go on, or choose another folder with --out"
                )
