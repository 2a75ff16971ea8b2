"""A comparison as rows, each of which knows the jobs that its figures come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from metamirror.data import TaskStream
from metamirror.experiments.comparison.entries import (
    BASELINE,
    Entry,
    Kind,
    Recipes,
    make_entries,
)
from metamirror.experiments.comparison.grid import (
    Cell,
    PerRow,
    Rates,
    cell_of,
    read_per_row,
)
from metamirror.experiments.comparison.jobs import Job
from metamirror.methods import METHODS, find_method
from metamirror.training.config import RunConfig
from metamirror.training.factory import build_model, extra_parameters

PUBLISHED_ON, PUBLISHED_WAYS = "mini-imagenet", 5
"""What the paper's Table 1 is about."""


@dataclass(frozen=True)
class Wanted:
    """What is to be compared.

    Attributes:
        base: the settings that all runs share.
        methods: as in `read_methods`.
        shots: one column group each.
        seeds: how many, from 0 on; as in `1,maml=3`.
        lr: inner step sizes; as in `0.05,maml=0.1`.
        recipes: whether methods are trained alike or as their authors trained them.
        controls: whether to add the control rows.
        test_tasks: on which all rows are judged.
    """

    base: RunConfig
    methods: Sequence[str]
    shots: Sequence[int]
    seeds: str = "1"
    lr: str = ""
    recipes: Recipes = "common"
    controls: bool = True
    test_tasks: int = 600


@dataclass(frozen=True)
class Row:
    """A row for one number of shots.

    Attributes:
        label: its name.
        title: what people call it.
        optimizer: the lower-level optimiser.
        geometry: the loss geometry.
        kind: whether it competes.
        shots: examples a class.
        jobs: by seed; where nothing is trained, the one seed is None.
        published: what the paper's table lists, if it is about this data set.
        extra: parameters beside the start.
        note: what a reader must know of it.
    """

    label: str
    title: str
    optimizer: str
    geometry: str
    kind: Kind
    shots: int
    jobs: Mapping[int | None, Job]
    published: str | None = None
    extra: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Grid:
    """Rows that are trained, with everything that their cells need.

    Attributes:
        wanted: what it was made from.
        entries: the trained rows.
        seeds: how many, by row.
        lr: step sizes, by row.
        extra: parameters beside the start, by row.
        network: what the model is made with.
    """

    wanted: Wanted
    entries: Sequence[Entry]
    seeds: PerRow[int]
    lr: PerRow[float]
    extra: Mapping[str, int]
    network: Mapping[str, Any]

    def cells(self, found: Mapping[tuple[str, int], Rates] | None = None) -> list[Cell]:
        """Every run once, the first seed of all rows before the second of any.

        Args:
            found: step sizes by row and shots that a search has found.
        """
        cells: dict[str, Cell] = {}
        for seed in range(max(self.seeds.of(e.runs) for e in self.entries)):
            for shots in self.wanted.shots:
                for entry in self.entries:
                    if seed < self.seeds.of(entry.runs):
                        usual = Rates(self.lr.of(entry.runs))
                        cell = cell_of(
                            entry,
                            self.wanted.base,
                            shots=shots,
                            seed=seed,
                            rates=(found or {}).get((entry.runs, shots), usual),
                            extra=self.extra[entry.label],
                        )
                        cells.setdefault(cell.name, cell)
        return list(cells.values())


def make_grid(wanted: Wanted, stream: TaskStream) -> Grid:
    """The trained rows, checked."""
    base = wanted.base
    entries = make_entries(
        wanted.methods, base.iterations, recipes=wanted.recipes, controls=wanted.controls
    )
    labels = [entry.label for entry in entries]
    seeds = read_per_row("seeds", wanted.seeds, 1, labels)
    if few := [n for n in (seeds.common, *seeds.apart.values()) if n < 1]:
        raise ValueError(f"seeds is {few[0]}; it must be at least 1")
    if wanted.test_tasks < 2:
        raise ValueError(f"test_tasks is {wanted.test_tasks}; an interval needs at least 2")
    lr = read_per_row("lr", wanted.lr, base.lr, labels)
    with torch.device("meta"):
        model = build_model(base, stream)
    extra = {entry.label: extra_parameters(entry.method, model) for entry in entries}
    network = model.config
    assert isinstance(network, dict)
    return Grid(wanted, entries, seeds, lr, extra, network)


def run_job(cell: Cell, tasks: int) -> Job:
    """A cell, trained and judged on the test tasks."""
    return Job(cell.name, "run", cell.folder, asdict(cell.config), "test", tasks)


def make_rows(grid: Grid, cells: Sequence[Cell], *, pictures: bool) -> list[Row]:
    """All rows in the order of the table: for each number of shots, methods and then controls."""
    rows = []
    for shots in grid.wanted.shots:
        here = [cell for cell in cells if cell.config.shots == shots]
        rows += [_trained_row(grid, entry, shots, here) for entry in grid.entries]
        if grid.wanted.controls and pictures:
            rows += _nearest_mean_rows(grid, shots, here)
    return rows


def _trained_row(grid: Grid, entry: Entry, shots: int, cells: Sequence[Cell]) -> Row:
    method = find_method(entry.method)[0]
    base = grid.wanted.base
    in_the_paper = (base.data, base.ways) == (PUBLISHED_ON, PUBLISHED_WAYS)
    return Row(
        label=entry.label,
        title=entry.title,
        optimizer=method.optimizer,
        geometry=method.geometry,
        kind=entry.kind,
        shots=shots,
        jobs={
            c.config.seed: run_job(c, grid.wanted.test_tasks)
            for c in cells
            if c.label == entry.runs
        },
        published=method.published.get(shots) if in_the_paper and entry.label in METHODS else None,
        extra=grid.extra[entry.label],
        note=(
            f"the runs of {entry.same_as}, since one outer optimiser and schedule serves all rows"
            if entry.same_as
            else None
        ),
    )


def _nearest_mean_rows(grid: Grid, shots: int, cells: Sequence[Cell]) -> list[Row]:
    tasks = grid.wanted.test_tasks
    shown = replace(grid.wanted.base, method=BASELINE, shots=shots, seed=0)
    name = f"nearest-mean-pixels-{shots}shot"
    on_pixels = Job(name, "nearest mean of pixels", None, _drawn(shown), "test", tasks)
    on_features: dict[int | None, Job] = {
        cell.config.seed: Job(
            f"nearest-mean-features-{shots}shot-seed{cell.config.seed}",
            "nearest mean of features",
            cell.folder,
            asdict(cell.config),
            "test",
            tasks,
        )
        for cell in cells
        if cell.label == BASELINE
    }
    common = {"kind": "control", "shots": shots, "geometry": "none"}
    rows = []
    if on_features:
        rows.append(
            Row(
                label="nearest-mean-features",
                title=f"Nearest class mean, features of {METHODS[BASELINE].title}'s start",
                optimizer="no adaptation",
                jobs=on_features,
                extra=0,
                **common,  # type: ignore[arg-type]
            )
        )
    rows.append(
        Row(
            label="nearest-mean-pixels",
            title="Nearest class mean, pixels",
            optimizer="no learning",
            jobs={None: on_pixels},
            **common,  # type: ignore[arg-type]
        )
    )
    return rows


def _drawn(config: RunConfig) -> dict[str, Any]:
    """What decides the test tasks, and nothing else: other settings make no other job of it."""
    keys = ("method", "data", "image_size", "ways", "shots", "queries")
    return {key: getattr(config, key) for key in keys}


def jobs_of(rows: Sequence[Row]) -> list[Job]:
    """Every job once."""
    return list({job.name: job for row in rows for job in row.jobs.values()}.values())
