"""The rows of a comparison, each with the jobs that its figures come from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metamirror.data import ImageTasks, TaskStream
from metamirror.experiments.comparison.jobs import Job
from metamirror.experiments.comparison.search import Rates
from metamirror.experiments.comparison.spec import Recipes, Spec
from metamirror.experiments.comparison.table import Kind, Row
from metamirror.experiments.statistics import BASELINE
from metamirror.methods import METHODS, find_method
from metamirror.training.config import RunConfig, difference, load_config
from metamirror.training.factory import build_model, build_stream, extra_parameters
from metamirror.training.run_folder import MAY_DIFFER

CELLS = "cells"
SPLITS = ("train", "val", "test")
DIAGONAL = "metasgd"
"""The simplest learned geometry: the control of a method with a recipe is it, trained alike."""
PUBLISHED_ON, PUBLISHED_WAYS = "mini-imagenet", 5
"""What the paper's Table 1 is about."""


class Trained(NamedTuple):
    """What a trained row is, for any number of shots.

    Attributes:
        label: its name in the table; a method's key, with options where there are some.
        method: as in a run's configuration.
        title: what people call it.
        kind: whether it competes, or is a control.
        recipe: settings of the outer level in place of the common ones.
        runs: the label under which its runs are kept: another row's, if those are the same runs.
    """

    label: str
    method: str
    title: str
    kind: Kind
    recipe: Mapping[str, Any]
    runs: str


def trained_rows(
    methods: Sequence[str], iterations: int, *, recipes: Recipes, controls: bool
) -> list[Trained]:
    """Return rows in the order of the table: methods as given, controls behind them."""
    wanted = list(methods)
    if controls:
        wanted += [key for key, method in METHODS.items() if method.control and key not in wanted]
    found = []
    for name in wanted:
        method, options = find_method(name)
        words = ", ".join(f"{key}={value}" for key, value in options.items())
        title = f"{method.title} ({words})" if words else method.title
        own = recipe(method.key, iterations) if recipes == "authors" else {}
        found.append(
            Trained(name, name, title, "control" if method.control else "method", own, name)
        )
    if controls:
        with_recipe = {find_method(name)[0].key: None for name in wanted}
        for key in (key for key in with_recipe if METHODS[key].recipe and key != DIAGONAL):
            own = recipe(key, iterations) if recipes == "authors" else {}
            label = f"{DIAGONAL}-as-{key}"
            title = f"{METHODS[DIAGONAL].title}, trained as {METHODS[key].title}"
            # Where all are trained alike it is the row of MetaSGD itself.
            same = [t.label for t in found if t.method == DIAGONAL and t.recipe == own]
            runs = same[0] if same else label
            found.append(Trained(label, DIAGONAL, title, "control", own, runs))
    return sorted(found, key=lambda row: row.kind == "control")


def recipe(key: str, iterations: int) -> dict[str, Any]:
    """Return the authors' settings, their schedule stretched to these iterations."""
    found = dict(METHODS[key].recipe)
    if "decay_every" in found:
        found["decay_every"] = max(1, found["decay_every"] * iterations // RunConfig.iterations)
    return found


def open_streams(spec: Spec) -> dict[tuple[str, int], TaskStream]:
    """Return the tasks of every split, so that what is missing is named before training."""
    return {
        (split, n): build_stream(
            replace(spec.base, shots=n), split, batch=1, data_dir=spec.data_dir
        )
        for split in SPLITS
        for n in spec.shots
    }


def network_of(base: RunConfig, stream: TaskStream) -> torch.nn.Module:
    """Return the network of all runs, without its values."""
    with torch.device("meta"):
        return build_model(base, stream)


def make_rows(
    spec: Spec, stream: TaskStream, chosen: Mapping[tuple[str, int], Rates] | None = None
) -> list[Row]:
    """Return all rows: for each number of shots, methods and then controls.

    Args:
        spec: what is compared.
        stream: some of its tasks.
        chosen: step sizes by row and shots that a search has found.
    """
    if spec.test_tasks < 2:
        raise ValueError(f"test_tasks is {spec.test_tasks}; an interval needs at least 2")
    base = spec.base
    trained = trained_rows(
        spec.methods, base.iterations, recipes=spec.recipes, controls=spec.controls
    )
    labels = [one.label for one in trained]
    seeds, lr = spec.seeds_of(labels), spec.lr_of(labels)
    model = network_of(base, stream)
    extra = {one.label: extra_parameters(one.method, model) for one in trained}
    in_the_paper = (base.data, base.ways) == (PUBLISHED_ON, PUBLISHED_WAYS)
    rows = []
    for shots in spec.shots:
        here = []
        for one in trained:
            rates = (chosen or {}).get((one.runs, shots), Rates(lr.of(one.runs)))
            config = replace(
                base,
                method=one.method,
                shots=shots,
                **{"geometry_lr": base.geometry_lr, **rates.settings(), **one.recipe},
            )
            if not extra[one.label]:
                # A learning rate for nothing would be refused.
                config = replace(config, geometry_lr=None)
            config.check()
            method = find_method(one.method)[0]
            published = in_the_paper and one.label in METHODS
            note = f"the runs of {one.runs}, since one outer optimiser and schedule serves all rows"
            here.append(
                Row(
                    method=one.label,
                    title=one.title,
                    optimizer=method.optimizer,
                    geometry=method.geometry,
                    kind=one.kind,
                    shots=shots,
                    jobs={
                        seed: run_job(spec, one.runs, replace(config, seed=seed))
                        for seed in range(seeds.of(one.runs))
                    },
                    published=method.published.get(shots) if published else None,
                    extra_parameters=extra[one.label],
                    note=note if one.runs != one.label else None,
                    recipe=one.recipe,
                )
            )
        if spec.controls and isinstance(stream, ImageTasks):
            here += _nearest_mean_rows(spec, shots, here)
        rows += here
    return rows


def run_job(spec: Spec, label: str, config: RunConfig) -> Job:
    """Return a run to train and to evaluate on the test tasks."""
    name = f"{file_name(label)}-{config.shots}shot-seed{config.seed}"
    return _job(spec, name, "run", f"{CELLS}/{name}", asdict(config))


def _job(spec: Spec, name: str, work: Any, folder: str | None, config: dict[str, Any]) -> Job:
    data_dir = None if spec.data_dir is None else str(spec.data_dir.absolute())
    out = str(spec.out.absolute())
    return Job(name, work, folder, config, "test", spec.test_tasks, out, spec.device, data_dir)


def _nearest_mean_rows(spec: Spec, shots: int, rows: Sequence[Row]) -> list[Row]:
    """Return the controls that do not adapt."""
    base = next((row for row in rows if row.method == BASELINE), None)
    found = []
    if base is not None:
        title = f"Nearest class mean, features of {base.title}'s start"
        name = f"nearest-mean-features-{shots}shot-seed"
        jobs: dict[int | None, Job] = {
            seed: replace(job, name=f"{name}{seed}", work="nearest mean of features")
            for seed, job in base.jobs.items()
        }
        found.append(
            Row(
                "nearest-mean-features",
                title,
                optimizer="no adaptation",
                geometry="none",
                kind="control",
                shots=shots,
                jobs=jobs,
                extra_parameters=0,
            )
        )
    # What decides the test tasks, and nothing else: other settings make no other job of it.
    shown = replace(spec.base, method=BASELINE, shots=shots)
    keys = ["method", "data", "image_size", "ways", "shots", "queries"]
    keys += ["imports"] if shown.imports else []
    config = {key: getattr(shown, key) for key in keys}
    name = f"nearest-mean-pixels-{shots}shot"
    found.append(
        Row(
            "nearest-mean-pixels",
            "Nearest class mean, pixels",
            optimizer="no learning",
            geometry="none",
            kind="control",
            shots=shots,
            jobs={None: _job(spec, name, "nearest mean of pixels", None, config)},
        )
    )
    return found


def jobs_of(rows: Sequence[Row]) -> list[Job]:
    """Return every job once, runs before controls, the first seed of all rows before the second."""
    jobs = {job.name: job for row in rows for job in row.jobs.values()}
    return sorted(jobs.values(), key=lambda job: (job.work != "run", job.config.get("seed", 0)))


def file_name(label: str) -> str:
    """Return a label as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", label)


def refuse_other_settings(jobs: Sequence[Job]) -> None:
    """Refuse to go on in a folder whose runs were started with other settings."""
    for job in (job for job in jobs if job.work == "run"):
        folder, config = Path(job.out, str(job.folder)), RunConfig(**job.config)
        try:
            stored = load_config(folder)
        except (ValueError, OSError):
            # Not begun; or damaged, which is that run's failure and nobody else's.
            continue
        for key in difference(config, stored):
            ours, theirs = getattr(config, key), getattr(stored, key)
            shorter = key == "iterations" and (ours < theirs or config.schedule == "cosine")
            if shorter or key not in MAY_DIFFER:
                raise ValueError(
                    f"{folder} was started with {key} {theirs}, not {ours}: give the same settings "
                    f"to go on, or choose another folder with --out"
                )
