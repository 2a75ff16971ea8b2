"""Checkpoints: everything that the rest of a run depends on, in one file each.

`RUN/checkpoints/step-00000200.safetensors` holds the learner, the optimiser's moments, the best
learner so far, the random state, and as JSON the step, the scores and the sums behind the next line
of metrics. A file is written aside and renamed, and carries a checksum. The last two are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor

from metamirror.console import warn
from metamirror.core.learner import Learner
from metamirror.core.option_spec import convert
from metamirror.storage import learner_file, tensor_file
from metamirror.storage.atomic import write_atomically
from metamirror.storage.tensor_file import DamagedFileError
from metamirror.training.outer_step import parameters_of

FOLDER = "checkpoints"
FORMAT = 1
KEPT = 2
MOMENTUM = "momentum_buffer"
"""What torch's SGD keeps of each parameter; Adam keeps its count of steps and two moments."""


@dataclass
class Standing:
    """Where a run stands, beside its tensors.

    Attributes:
        step: outer steps done.
        best_step: the step of the best validation so far.
        best_score: its score, of which more is better.
        losses: the sum of the meta-losses since the last line of metrics.
        accuracies: the same of the accuracies; None for regression.
        counted: how many steps are in those sums.
        skipped: steps passed over, since something in them was not finite.
        skipped_in_a_row: those of them since the last good step.
        metrics_bytes: how long metrics.jsonl was.
    """

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    losses: float = 0.0
    accuracies: float | None = None
    counted: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    metrics_bytes: int = 0


def pack(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    standing: Standing,
    best: Mapping[str, Tensor],
) -> bytes:
    """The content of a checkpoint."""
    parts: dict[str, Mapping[str, Tensor]] = {
        "learner": learner_file.tensors_of(learner),
        "optimizer": _moments(optimizer),
        "best": best,
        "random": {"cpu": torch.get_rng_state()},
    }
    if next(learner.parameters()).is_cuda:
        parts["random"] = {**parts["random"], "cuda": torch.cuda.get_rng_state()}
    tensors = {f"{part}/{name}": t for part, some in parts.items() for name, t in some.items()}
    return tensor_file.pack(tensors, {"format": FORMAT, **asdict(standing)})


def unpack(
    content: bytes, origin: object, learner: Learner, optimizer: torch.optim.Optimizer
) -> tuple[Standing, dict[str, Tensor]]:
    """Puts a checkpoint into a learner and its optimiser; gives the standing and the best."""
    tensors, facts = tensor_file.unpack(content, origin, ours=True)
    parts: dict[str, dict[str, Tensor]] = {}
    for address, tensor in tensors.items():
        part, _, name = address.partition("/")
        parts.setdefault(part, {})[name] = tensor
    standing, best = _standing(facts, origin), parts.get("best", {})
    for held in (parts.get("learner", {}), best):
        _check_types(learner, held, origin)
    learner_file.fill(learner, parts.get("learner", {}), origin)
    if best:
        learner_file.check_fit(learner, best, origin)
    _fill_moments(optimizer, parts.get("optimizer", {}), origin)
    random = parts.get("random", {})
    try:
        if "cpu" in random:
            torch.set_rng_state(random["cpu"])
        if "cuda" in random and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["cuda"])
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{origin} holds no random state of this torch: {error}") from error
    return standing, best


def write(run: Path, step: int, content: bytes) -> None:
    """Adds a checkpoint to a run, and removes those that are no longer needed."""
    (run / FOLDER).mkdir(exist_ok=True)
    write_atomically(file_of(run, step), content)
    older = [file for file in files(run) if step_of(file) <= step]
    for file in older[:-KEPT]:
        file.unlink()


def newest(run: Path) -> tuple[bytes, Path] | None:
    """The newest intact checkpoint of a run; None if it has none at all.

    A damaged one is put aside, with a warning, and the one before it is taken.
    """
    for file in reversed(files(run)):
        content = file.read_bytes()
        try:
            facts = tensor_file.unpack(content, file, ours=True)[1]
        except DamagedFileError as error:
            aside = file.with_suffix(".damaged")
            warn(f"{error}; it is put aside as {aside.name}, and the one before is used")
            file.rename(aside)
            continue
        _standing(facts, file)
        return content, file
    check_unbegun(run)
    return None


def check_unbegun(run: Path) -> None:
    """Refuses to start a run over that has got somewhere, but whose checkpoints are gone."""
    metrics, last = run / "metrics.jsonl", run / "last" / learner_file.TENSORS
    if (
        list((run / FOLDER).glob("step-*.damaged"))
        or (metrics.is_file() and metrics.stat().st_size)
        or (last.is_file() and tensor_file.read(last)[1].get("step"))
    ):
        raise ValueError(
            f"{run / FOLDER} holds no intact checkpoint: restore one from a backup, or start "
            f"again in another folder with --config {run / 'config.json'}"
        )


def files(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run / FOLDER).glob("step-*.safetensors"), key=step_of)


def file_of(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run / FOLDER / f"step-{step:08d}.safetensors"


def step_of(file: Path) -> int:
    """The step in a checkpoint's name."""
    number = file.stem.removeprefix("step-")
    return int(number) if number.isdecimal() else -1


def _standing(facts: Mapping[str, Any], origin: object) -> Standing:
    known = {field.name for field in fields(Standing)}
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{origin} is a checkpoint of format {facts.get('format')}, and this version of "
            f"metamirror reads format {FORMAT}: continue it with the version in versions.json"
        )
    if known | {"format"} != set(facts):
        raise ValueError(f"{origin} lacks {sorted(known - set(facts))}, or has fields besides")
    kinds = get_type_hints(Standing)
    try:
        found = {name: convert(name, facts[name], kinds[name]) for name in known}
        if odd := [n for n, value in found.items() if isinstance(value, int) and value < 0]:
            raise ValueError(f"{odd[0]} is {found[odd[0]]}; it must be at least 0")
    except ValueError as error:
        raise ValueError(f"{origin} does not say where its run stands: {error}") from error
    return Standing(**found)


def _check_types(learner: Learner, stored: Mapping[str, Tensor], origin: object) -> None:
    """A run goes on in the type that it has: its optimiser would stumble over another."""
    for name, tensor in learner_file.tensors_of(learner).items():
        if name in stored and stored[name].dtype != tensor.dtype:
            raise ValueError(
                f"{name} is {stored[name].dtype} in {origin}, and this run has {tensor.dtype}"
            )


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{i}/{name}": value
        for i, p in enumerate(parameters_of(optimizer))
        for name, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }


def _fill_moments(
    optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor], origin: object
) -> None:
    parameters = dict(enumerate(parameters_of(optimizer)))
    optimizer.state.clear()
    for address, value in stored.items():
        index, _, name = address.partition("/")
        p = parameters.get(int(index)) if index.isdecimal() else None
        shape = () if p is None or name == "step" else p.shape
        if p is None or value.shape != shape or value.dtype not in (p.dtype, torch.float32):
            raise ValueError(
                f"{origin} holds {name} of shape {tuple(value.shape)} for parameter {index}, "
                f"which does not fit this run's optimiser"
            )
        # Adam counts its steps on the CPU. Moments have the strides of their parameter.
        optimizer.state[p][name] = (
            torch.empty_like(p, dtype=value.dtype).copy_(value) if name != "step" else value
        )
    moments = {"step", "exp_avg", "exp_avg_sq"} if "betas" in optimizer.defaults else {MOMENTUM}
    for p, state in optimizer.state.items():
        if set(state) != moments:
            raise ValueError(
                f"{origin} holds {sorted(state)} of a parameter of shape {tuple(p.shape)}; this "
                f"run's optimiser keeps {sorted(moments)}"
            )
