"""Steps whose loss or gradient is not finite, and runs whose loss has exploded."""

import math
from pathlib import Path

import torch
from torch import Tensor

from metamirror.core.files import write_atomically, write_json
from metamirror.core.trees import leaves
from metamirror.data import TaskStream
from metamirror.storage import tensor_file
from metamirror.storage.checkpoint import TrainingState
from metamirror.training.config import RunConfig

FOLDER = "nonfinite"
SKIPS_WRITTEN = 10
SKIPS_IN_A_ROW = 100
EXPLODED = 1e3
"""A run whose meta-loss is that many times the loss of guessing has diverged."""


NONE_ALONE = "none alone, only their sum"


class NonFiniteError(ValueError):
    """A run that cannot go on."""


def loss_of_guessing(stream: TaskStream) -> float:
    """Return the loss of equal probabilities, or in regression that of answering 0.

    Of targets that are no tensor nothing is known but that any loss is below infinity.
    """
    first = stream.task(0, 0).query.y
    if not isinstance(first, Tensor):
        return math.inf
    if not first.is_floating_point():
        return math.log(max(stream.outputs, 2))
    # Over many tasks: one alone may have targets close to 0.
    steps = range(64) if stream.exact else range(1)
    targets = [stream.task(step, 0).query.y.flatten() for step in steps]
    return torch.cat(targets).double().square().mean().item() or 1.0


class DivergedError(ValueError):
    """A run that came to its end with a loss far above that of guessing."""

    exit_code = 1


def explosion(config: RunConfig, state: TrainingState, guessing: float) -> str | None:
    """Return what is wrong, and what to do, where the last meta-loss is finite but absurd."""
    if state.last_loss is None or state.last_loss <= EXPLODED * guessing:
        return None
    return (
        f"{config.title} has diverged: its {'' if config.pretrains else 'meta-'}loss is "
        f"{state.last_loss:.3g} at step {state.step}, and that of guessing {guessing:.3g}; lower "
        f"{rates(config)}"
    )


def rates(config: RunConfig) -> str:
    """Return the learning rates of a run that may be too high."""
    inner = "" if config.pretrains else f"lr ({config.lr}) or "
    return f"{inner}outer_lr ({config.outer_lr})"


def write_tasks(
    run: Path, config: RunConfig, stream: TaskStream, step: int, found: dict[int, str]
) -> None:
    """Write the tasks of a step for inspection, each with its address."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    for index, kind in found.items():
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
            f"{part}.{axis}" if tensor is tree else f"{part}.{axis}.{i}": tensor
            for part, batch in zip(("support", "query"), stream.task(step, index), strict=True)
            for axis, tree in zip("xy", batch, strict=True)
            for i, tensor in enumerate(leaves(tree))
        }
        write_atomically(folder / f"{name}.safetensors", tensor_file.pack(tensors, address))
        write_json(folder / f"{name}.json", address)


def describe(config: RunConfig, step: int, found: dict[int, str]) -> str:
    """Return what happened, where, and what to do."""
    kind = next(iter(found.values()), "gradient" if config.pretrains else "meta-gradient")
    where = "" if config.pretrains else f", task {', '.join(map(str, found)) or NONE_ALONE}"
    unclipped = kind.endswith("gradient") and not (config.clip_norm or config.clip_value)
    clip = ", or set clip_norm" if unclipped else ""
    return (
        f"the {kind} of {config.title} is not finite at step {step}{where}: lower "
        f"{rates(config)}{clip}"
    )
