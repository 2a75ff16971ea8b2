"""Small runs, what they leave, and processes that start without importing torch again."""

from __future__ import annotations

import functools
import multiprocessing
import os
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import metamirror as mm
from metamirror.data import TaskStream
from metamirror.data.addressing import task_generator
from metamirror.methods import takes_real_targets
from metamirror.training.config import RunConfig

SMALL = RunConfig(
    method="maml",
    data="sinusoid",
    shots=3,
    queries=3,
    steps=2,
    iterations=12,
    tasks_per_step=3,
    width=8,
    validate_every=4,
    val_tasks=3,
    checkpoint_every=5,
    log_every=3,
)


def small(**changes: Any) -> RunConfig:
    return replace(SMALL, **changes)


def small_of(method: str, **changes: Any) -> RunConfig:
    """A small run of a method, on letters where it needs classes."""
    letters = {} if takes_real_targets(method) else {"data": "glyphs", "image_size": 16, "width": 4}
    return small(method=method, **letters, **changes)


class Pictures(TaskStream):
    """Classes are random patterns of large squares, and examples are those with noise."""

    example_shape = (1, 28, 28)
    outputs = 3

    def task(self, step: int, index: int) -> mm.Task:
        random = task_generator(self.seed, self.split, step, index)
        squares = random.uniform(size=(self.outputs, 1, 4, 4))
        prototypes = squares.repeat(7, axis=2).repeat(7, axis=3)

        def batch(count: int) -> mm.Batch:
            y = torch.arange(self.outputs).repeat(count)
            noise = torch.from_numpy(random.normal(scale=0.3, size=(len(y), 1, 28, 28)))
            return mm.Batch((torch.from_numpy(prototypes)[y] + noise).float(), y)

        return mm.Task(batch(self.shots), batch(self.queries))


def results(run: Path) -> dict[str, bytes]:
    """What must be the same, bit for bit, whatever happened to a run on its way."""
    newest = max((run / "checkpoints").glob("*.safetensors"))
    names = ["metrics.jsonl", "config.json", f"checkpoints/{newest.name}"]
    names += [str(p.relative_to(run)) for p in run.glob("*/learner.*")]
    return {name: (run / name).read_bytes() for name in sorted(names)}


@functools.cache
def forks() -> ForkServerContext:
    """Processes forked from one that has imported everything: each starts in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.warm"])
    where = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(mm.__file__).parents[1])])
    with patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "PYTHONPATH": where}):
        forkserver.ensure_running()
    return context
