"""Algorithm 1 of the paper: the outer loop, read from top to bottom."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from metamirror import checkpoint
from metamirror.build import build_learner, build_stream
from metamirror.config import RunConfig
from metamirror.data import TaskStream
from metamirror.files import write_json
from metamirror.learner import Learner
from metamirror.progress import Progress

LOG_EVERY = 100


def outer_step(
    learner: Learner, optimizer: torch.optim.Optimizer, stream: TaskStream, step: int
) -> float:
    """One step of the outer level; returns the meta-loss."""
    loss = learner.meta_loss(stream[step], seeds=stream.seeds(step))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(
            f"the meta-loss is {value} at step {step}: lower lr ({learner.lr}) or the outer rate"
        )
    return value


def train(config: RunConfig, out: Path) -> Learner:
    """Trains a learner and leaves a run folder: config.json, metrics.jsonl, last/."""
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose another folder, or remove it")
    if config.iterations < 1:
        raise ValueError(f"iterations is {config.iterations}; it must be at least 1")
    stream = build_stream(config, "train")
    learner = build_learner(config, stream)
    trained = [p for p in learner.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=config.outer_lr)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", asdict(config))

    recent: list[float] = []
    began = time.perf_counter()
    with (
        (out / "metrics.jsonl").open("w") as metrics,
        Progress(f"train {config.method}", config.iterations) as progress,
    ):
        for step in range(config.iterations):
            recent.append(outer_step(learner, optimizer, stream, step))
            if (step + 1) % LOG_EVERY == 0 or step + 1 == config.iterations:
                mean = sum(recent) / len(recent)
                line = {
                    "step": step + 1,
                    "loss": mean,
                    "seconds": round(time.perf_counter() - began, 3),
                }
                metrics.write(json.dumps(line) + "\n")
                metrics.flush()
                recent.clear()
                progress.update(step + 1, f"loss {mean:.4f}")
    checkpoint.save(learner, out / "last")
    return learner
