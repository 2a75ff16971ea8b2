"""Algorithm 1 of the paper: the outer loop, read from top to bottom."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from metamirror import checkpoint, models
from metamirror.config import RunConfig
from metamirror.data import TaskStream, tasks
from metamirror.files import write_json
from metamirror.learner import Learner
from metamirror.methods import make_learner
from metamirror.progress import Progress

LOG_EVERY = 100


def build_stream(config: RunConfig, split: str, *, batch: int | None = None) -> TaskStream:
    """The tasks of a run."""
    return tasks(
        config.data,
        split,
        ways=config.ways,
        shots=config.shots,
        queries=config.queries,
        seed=config.seed,
        batch=config.tasks_per_step if batch is None else batch,
        image_size=config.image_size,
    )


def build_model(config: RunConfig, stream: TaskStream) -> nn.Module:
    """The network of a run, made for the examples of its tasks."""
    shape = stream.example_shape
    name = config.model or ("conv4" if len(shape) == 3 else "mlp")
    if name == "mlp":
        hidden = {} if config.width is None else {"hidden": (config.width, config.width)}
        return models.build(name, inputs=math.prod(shape), outputs=stream.outputs, **hidden)
    if len(shape) != 3:
        raise ValueError(f"{name} takes pictures, and {config.data} has none: choose model mlp")
    channels, size, _ = shape
    width = {} if config.width is None else {"width": config.width}
    return models.build(name, ways=stream.outputs, channels=channels, image_size=size, **width)


def build_learner(config: RunConfig, stream: TaskStream) -> Learner:
    """The learner of a run, at its seeded start."""
    torch.manual_seed(config.seed)
    return make_learner(
        config.method,
        build_model(config, stream),
        steps=config.steps,
        lr=config.lr,
        first_order=config.first_order,
        norm=config.norm,
        prior=config.prior,
        vectorize=config.vectorize,
    )


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
