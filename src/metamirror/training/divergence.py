"""What is done about a step whose loss or gradient is not finite."""

from __future__ import annotations

from pathlib import Path

from metamirror.data import TaskStream
from metamirror.storage import tensor_file
from metamirror.storage.atomic import write_atomically, write_json
from metamirror.training.config import RunConfig

FOLDER = "nonfinite"
SKIPS_WRITTEN = 10
SKIPS_IN_A_ROW = 100


class NonFiniteError(ValueError):
    """A run that cannot go on."""


def hopeless(skipped_in_a_row: int) -> bool:
    """Whether so many steps in a row were skipped that a run no longer learns."""
    return skipped_in_a_row >= SKIPS_IN_A_ROW


def write_tasks(
    run: Path, config: RunConfig, stream: TaskStream, step: int, found: dict[int, str]
) -> None:
    """Leaves the tasks of a step for inspection, each with its address."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    for index, kind in found.items():
        support, query = stream.task(step, index)
        name = f"step-{step:08d}-task-{index}"
        address = {
            "data": config.data,
            "split": stream.split,
            "seed": config.seed,
            "step": step,
            "index": index,
            "method": config.method,
            "not_finite": kind,
        }
        tensors = {
            "support.x": support.x,
            "support.y": support.y,
            "query.x": query.x,
            "query.y": query.y,
        }
        write_atomically(folder / f"{name}.safetensors", tensor_file.pack(tensors, address))
        write_json(folder / f"{name}.json", address)


def describe(config: RunConfig, step: int, found: dict[int, str]) -> str:
    """What happened, where, and what to do."""
    if found:
        kind = next(iter(found.values()))
        where = ", ".join(str(index) for index in found)
    else:
        kind, where = "meta-gradient", "none alone, only their sum"
    unclipped = kind == "meta-gradient" and not (config.clip_norm or config.clip_value)
    clip = ", or set clip_norm" if unclipped else ""
    return (
        f"the {kind} of {config.method} is not finite at step {step}, task {where}: lower lr "
        f"({config.lr}) or outer_lr ({config.outer_lr}){clip}"
    )
