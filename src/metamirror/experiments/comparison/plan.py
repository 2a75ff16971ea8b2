"""The rows of a comparison, each with the jobs that its figures come from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from metamirror.core.files import file_name
from metamirror.data import ImageTasks, TaskStream
from metamirror.data.sizes import Count
from metamirror.experiments.comparison.jobs import Job
from metamirror.experiments.comparison.search import Rates
from metamirror.experiments.comparison.spec import Spec
from metamirror.experiments.comparison.table import Row
from metamirror.experiments.statistics import BASELINE
from metamirror.methods import METHODS, Method, find_method
from metamirror.methods.registry import GROUPS
from metamirror.training.config import RunConfig, load_config
from metamirror.training.factory import (
    build_model,
    build_stream,
    extra_parameters,
    resolved,
)
from metamirror.training.run_folder import check_settings

CELLS = "cells"
SPLITS = ("train", "val", "test")
DIAGONAL = "metasgd"
"""The simplest learned geometry: the control of a method with a recipe is it, trained alike."""
PUBLISHED_ON, PUBLISHED_WAYS = "mini-imagenet", 5
"""What the paper's Table 1 is about."""


def trained_rows(spec: Spec) -> list[Row]:
    """Return the rows that are trained, without jobs: methods as given, group by group."""

    def row(label: str, title: str, method: str, like: Method, others: Sequence[Row] = ()) -> Row:
        own = recipe(like, spec.base.iterations) if spec.recipes == "authors" else {}
        # Where all are trained alike, MetaSGD trained as another is the row of MetaSGD itself.
        same = next((r.runs for r in others if (r.spec, r.recipe) == (method, own)), None)
        note = f"the runs of {same}, since one outer optimiser and schedule serves all rows"
        return Row(
            method=label,
            title=title,
            optimizer=find_method(method)[0].optimizer,
            geometry=find_method(method)[0].geometry,
            group=like.group if label == method else "control",
            shots=0,
            note=note if same else None,
            spec=method,
            runs=same or label,
            recipe=own,
        )

    names = list(spec.methods)
    if spec.controls:
        controls = [key for key, method in METHODS.items() if method.group == "control"]
        names += [key for key in controls if key not in names]
    rows: list[Row] = []
    for name in names:
        method, options = find_method(name)
        words = ", ".join(f"{key}={value}" for key, value in options.items())
        rows.append(row(name, f"{method.title} ({words})" if words else method.title, name, method))
    for like in dict.fromkeys(find_method(name)[0].key for name in names):
        if spec.controls and METHODS[like].group == "paper" and METHODS[like].recipe:
            title = f"{METHODS[DIAGONAL].title}, trained as {METHODS[like].title}"
            rows.append(row(f"{DIAGONAL}-as-{like}", title, DIAGONAL, METHODS[like], rows))
    return sorted(rows, key=lambda row: list(GROUPS).index(row.group))


def recipe(method: Method, iterations: int) -> dict[str, Any]:
    """Return the authors' settings, their schedule stretched to these iterations."""
    found = dict(method.recipe)
    if "decay_every" in found:
        found["decay_every"] = max(1, found["decay_every"] * iterations // RunConfig.iterations)
    return found


def open_streams(spec: Spec) -> dict[tuple[str, Count], TaskStream]:
    """Return the tasks of every split, so that what is missing is named before training."""
    configs = {n: replace(spec.base, shots=n) for n in spec.shots}
    return {
        (split, n): build_stream(config, split, batch=1, data_dir=spec.data_dir)
        for split in SPLITS
        for n, config in configs.items()
    }


def network_of(base: RunConfig, stream: TaskStream) -> torch.nn.Module:
    """Return the network of all runs, without its values."""
    with torch.device("meta"):
        return build_model(base, stream)


def make_rows(
    spec: Spec, stream: TaskStream, chosen: Mapping[tuple[str, Count], Rates] | None = None
) -> list[Row]:
    """Return all rows: for each number of shots, methods and then controls.

    `stream` has some of the tasks; `chosen` are step sizes that a search has found.
    """
    if spec.test_tasks < 2:
        raise ValueError(f"test_tasks is {spec.test_tasks}; an interval needs at least 2")
    base, trained = spec.base, trained_rows(spec)
    labels = [row.method for row in trained]
    seeds, lr = spec.seeds_of(labels), spec.lr_of({row.method: row.spec for row in trained})
    model = network_of(base, stream)
    in_the_paper = (base.data, base.ways) == (PUBLISHED_ON, PUBLISHED_WAYS)
    rows = []
    for shots in spec.shots:
        here = []
        for row in trained:
            extra = extra_parameters(
                row.spec, model, steps=base.steps, prior=base.prior, adapts=base.adapts
            )
            rates = (chosen or {}).get((row.runs, shots), {"lr": lr[row.runs]})
            own = {"geometry_lr": base.geometry_lr, **rates, **row.recipe}
            # A learning rate for nothing would be refused.
            own |= {} if extra else {"geometry_lr": None}
            steps = find_method(row.spec)[0].steps_among_others(base.steps)
            config = replace(base, method=row.spec, shots=shots, steps=steps, **own)
            config.check()
            config = resolved(config)
            jobs: dict[int | None, Job] = {}
            for seed in range(base.seed, base.seed + seeds[row.runs]):
                jobs[seed] = run_job(spec, row.runs, replace(config, seed=seed))
            known = METHODS[row.method].published if row.method in METHODS else {}
            published = known.get(shots) if in_the_paper and isinstance(shots, int) else None
            row = replace(row, shots=shots, jobs=jobs, published=published, extra_parameters=extra)
            here.append(row)
        counted = base.metric in (None, "accuracy")
        if spec.controls and counted and isinstance(stream, ImageTasks):
            here += _nearest_mean_rows(spec, shots, stream, here)
        rows += here
    return rows


def run_job(spec: Spec, label: str, config: RunConfig) -> Job:
    """Return a run to train and to evaluate on the test tasks."""
    name = f"{file_name(label)}-{config.shots}shot-seed{config.seed}"
    return _job(spec, name, "run", f"{CELLS}/{name}", asdict(config))


def _job(spec: Spec, name: str, work: Any, folder: str | None, config: dict[str, Any]) -> Job:
    data_dir = None if spec.data_dir is None else str(spec.data_dir.absolute())
    out = str(spec.out.absolute())
    place = (out, spec.device, data_dir, spec.log)
    return Job(name, work, folder, config, "test", spec.test_tasks, *place)


def _nearest_mean_rows(
    spec: Spec, shots: Count, stream: TaskStream, rows: Sequence[Row]
) -> list[Row]:
    """Return the controls that do not adapt: on features of the baseline's start, on pixels."""
    control = partial(Row, geometry="none", group="control", shots=shots)
    found = []
    for base in (row for row in rows if row.method == BASELINE):
        name = "nearest-mean-features"
        title = f"Nearest class mean, features of {base.title}'s start"
        jobs = {}
        for seed, job in base.jobs.items():
            own = f"{name}-{shots}shot-seed{seed}"
            jobs[seed] = replace(job, name=own, work="nearest mean of features")
        found = [control(name, title, "no adaptation", jobs=jobs, extra_parameters=0)]
    # What decides the test tasks, and nothing else: other settings make no other job of it.
    shown = replace(spec.base, method=BASELINE, shots=shots)
    keys = ["method", "data", "image_size", "ways", "shots", "queries"]
    keys += ["imports"] if shown.imports else []
    config = {key: getattr(shown, key) for key in keys}
    name = "nearest-mean-pixels"
    job = _job(spec, f"{name}-{shots}shot", "nearest mean of pixels", None, config)
    title = f"Nearest class mean, {'pixels' if len(stream.example_shape) == 3 else 'inputs'}"
    return [*found, control(name, title, "no learning", jobs={None: job})]


def jobs_of(rows: Sequence[Row]) -> list[Job]:
    """Return every job once, runs before controls, the first seed of all rows before the second."""
    jobs = {job.name: job for row in rows for job in row.jobs.values()}
    return sorted(jobs.values(), key=lambda job: (job.work != "run", job.config.get("seed", 0)))


def refuse_other_settings(jobs: Sequence[Job]) -> None:
    """Refuse to go on in a folder whose runs were started with other settings."""
    for job in (job for job in jobs if job.work == "run"):
        folder = Path(job.out, str(job.folder))
        try:
            stored = load_config(folder)
        except (ValueError, OSError):
            # Not begun; or damaged, which is that run's failure and nobody else's.
            continue
        check_settings(folder, RunConfig(**job.config), stored)
