"""Every method side by side on generated tasks, within a few minutes and without any download."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from metamirror import checkpoint
from metamirror.build import build_learner, build_stream
from metamirror.config import RunConfig
from metamirror.data import TaskStream
from metamirror.evaluate import evaluate_stream, mean_and_interval
from metamirror.files import write_json
from metamirror.learner import Learner
from metamirror.methods import METHODS
from metamirror.progress import Progress
from metamirror.train import outer_step

CHUNK = 20
TEST_TASKS = 200
SHARE_FOR_TRAINING = 0.6


class _Cell:
    """One method's learner in training."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.stream: TaskStream = build_stream(config, "train")
        self.learner: Learner = build_learner(config, self.stream)
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=config.outer_lr)
        self.seconds = 0.0

    def advance(self, step: int) -> float:
        began = time.perf_counter()
        loss = outer_step(self.learner, self.optimizer, self.stream, step)
        self.seconds += time.perf_counter() - began
        return loss


def quickstart(minutes: float, out: Path) -> dict[str, Any]:
    """Trains all methods in turns, equally long in iterations, until the time is up.

    Leaves a run folder for each method, and the table as JSON.
    """
    if not minutes > 0:
        raise ValueError(f"minutes is {minutes}; it must be above 0")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose another folder with --out, or remove it")
    # Tensors this small lose more by being shared between threads than they gain.
    torch.set_num_threads(1)
    base = RunConfig(
        method="maml", data="sinusoid", shots=10, steps=1, tasks_per_step=25, iterations=1
    )
    cells = {key: _Cell(replace(base, method=key)) for key in METHODS}
    deadline = time.monotonic() + 60 * minutes * SHARE_FOR_TRAINING
    done = 0
    with Progress("quickstart", 100) as progress:
        began = time.monotonic()
        while time.monotonic() < deadline or done == 0:
            losses = {
                key: [cell.advance(step) for step in range(done, done + CHUNK)][-1]
                for key, cell in cells.items()
            }
            done += CHUNK
            share = min(1.0, (time.monotonic() - began) / max(deadline - began, 1e-9))
            note = f"{done} iterations each, MAML's loss {losses['maml']:.2f}"
            progress.update(round(100 * share), note)

    rows = []
    for key, cell in cells.items():
        config = replace(cell.config, iterations=done)
        folder = out / key
        checkpoint.save(cell.learner, folder / "last")
        write_json(folder / "config.json", asdict(config))
        results = evaluate_stream(cell.learner, build_stream(config, "test", batch=1), TEST_TASKS)
        mse, interval = mean_and_interval([r.loss for r in results])
        rows.append(
            {
                "method": key,
                "optimizer": METHODS[key].optimizer,
                "geometry": METHODS[key].geometry,
                "mse": mse,
                "ci95": interval,
                "seconds_per_iteration": cell.seconds / done,
            }
        )
    protocol = {**asdict(base), "iterations": done, "test_tasks": TEST_TASKS}
    del protocol["method"]
    found = {"protocol": protocol, "rows": rows}
    write_json(out / "table.json", found)
    return found
