"""Checkpoints: everything that the rest of a run depends on, in one file each.

`RUN/checkpoints/step-00000200.safetensors` holds the learner, the optimiser's moments, the best
learner so far, the random state, and as JSON the training state. A file is written aside and
renamed, and carries a checksum. The last two are kept.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from metamirror.console import warn
from metamirror.core.files import write_atomically
from metamirror.core.learner import Learner
from metamirror.core.option_spec import convert
from metamirror.storage import learner_file, tensor_file
from metamirror.storage.tensor_file import DamagedFileError

FOLDER = "checkpoints"
FORMAT = 1
KEPT = 2
ADDED_LATER = {
    "last_loss",
    "window_accuracies",
    "window_steps",
    "window_mean",
    "peak_accuracy",
    "collapsed",
}
"""Fields of the training state that older checkpoints of this format lack."""
RENAMED = {"accuracies": "scores"}
"""What they call other fields."""


@dataclass
class TrainingState:
    """How far a run has come, beside its tensors."""

    step: int = 0  # outer steps done.
    best_step: int | None = None  # the step of the best validation so far.
    best_score: float | None = None  # its score, of which more is better.
    losses: float = 0.0  # the sum of the meta-losses since the last line of metrics.
    scores: float | None = None  # the same of the metric; None where there is none.
    counted: int = 0  # how many steps are in those sums.
    skipped: int = 0  # steps skipped because something in them was not finite.
    skipped_in_a_row: int = 0  # those of them since the last good step.
    metrics_bytes: int = 0  # the length of metrics.jsonl.
    last_loss: float | None = None  # the mean meta-loss in the last line of metrics.
    window_accuracies: float = 0.0  # the sum of the accuracies since collapse was last looked for.
    window_steps: int = 0  # how many steps are in that sum.
    window_mean: float = 0.0  # the mean of the last full hundred steps.
    peak_accuracy: float = 0.0  # the best that two such means in a row have reached.
    collapsed: bool = False  # whether the last hundred steps were a collapse, and said to be.


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return what an optimiser trains, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def pack(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    state: TrainingState,
    best: Mapping[str, Tensor],
    beside: nn.Module | None = None,
) -> bytes:
    """Return the content of a checkpoint; `beside` is trained too, and no part of the learner."""
    random = {"cpu": torch.get_rng_state()}
    if next(learner.parameters()).is_cuda:
        random["cuda"] = torch.cuda.get_rng_state()
    moments = {
        f"{i}/{name}": value
        for i, p in enumerate(parameters_of(optimizer))
        for name, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }
    own = learner_file.tensors_of(learner)
    parts = {"learner": own, "optimizer": moments, "best": best, "random": random}
    parts["beside"] = {} if beside is None else beside.state_dict()
    tensors = {f"{part}/{name}": t for part, some in parts.items() for name, t in some.items()}
    return tensor_file.pack(tensors, {"format": FORMAT, **asdict(state)})


def unpack(
    content: bytes,
    origin: object,
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    beside: nn.Module | None = None,
) -> tuple[TrainingState, dict[str, Tensor]]:
    """Put a checkpoint into a learner and its optimiser; return the state and the best learner."""
    tensors, facts = tensor_file.unpack(content, origin, ours=True)
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for address, tensor in tensors.items():
        part, _, name = address.partition("/")
        parts[part][name] = tensor
    state, best, random = _state(facts, origin), parts["best"], parts["random"]
    # A run continues in its own type: the optimiser would fail on another.
    for stored in (parts["learner"], best) if best else (parts["learner"],):
        learner_file.check_fit(learner, stored, origin, same_types=True)
    learner_file.fill(learner, parts["learner"], origin)
    if beside is not None:
        try:
            beside.load_state_dict(parts["beside"])
        except RuntimeError as error:
            raise ValueError(f"{origin} does not fit this run: {error}") from error
    _fill_moments(optimizer, parts["optimizer"], origin)
    try:
        if "cpu" in random:
            torch.set_rng_state(random["cpu"])
        if "cuda" in random and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["cuda"])
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{origin} holds no random state of this torch: {error}") from error
    return state, best


def write(run: Path, step: int, content: bytes) -> None:
    """Add a checkpoint to a run, and remove those that are no longer needed."""
    (run / FOLDER).mkdir(exist_ok=True)
    write_atomically(file_of(run, step), content)
    older = [file for file in files(run) if step_of(file) <= step]
    for file in older[:-KEPT]:
        file.unlink()


def newest(run: Path) -> tuple[bytes, Path] | None:
    """Return the newest intact checkpoint of a run and its file; None if it has none at all.

    A damaged one is renamed, with a warning, and the one before it is taken.
    """
    for file in reversed(files(run)):
        content = file.read_bytes()
        try:
            tensor_file.unpack(content, file, ours=True)
        except DamagedFileError as error:
            aside = file.with_suffix(".damaged")
            warn(f"{error}; it is renamed to {aside.name}, and the one before is used")
            file.rename(aside)
        else:
            return content, file
    check_unbegun(run)
    return None


def check_unbegun(run: Path) -> None:
    """Refuse to start a run again that has made progress but has lost its checkpoints."""
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
    """Return the checkpoints of a run, oldest first."""
    return sorted((run / FOLDER).glob("step-*.safetensors"), key=step_of)


def file_of(run: Path, step: int) -> Path:
    """Return the file of the checkpoint of a step."""
    return run / FOLDER / f"step-{step:08d}.safetensors"


def step_of(file: Path) -> int:
    """Return the step in a checkpoint's name."""
    number = file.stem.removeprefix("step-")
    return int(number) if number.isdecimal() else -1


def _state(facts: Mapping[str, Any], origin: object) -> TrainingState:
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{origin} is a checkpoint of format {facts.get('format')}, and this version of "
            f"metamirror reads format {FORMAT}: continue it with the version in versions.json"
        )
    kinds = get_type_hints(TrainingState)
    given = {RENAMED.get(name, name): value for name, value in facts.items() if name != "format"}
    lacks, besides = set(kinds) - ADDED_LATER - set(given), set(given) - set(kinds)
    if lacks or besides:
        raise ValueError(f"{origin} lacks {sorted(lacks)} and has unknown {sorted(besides)}")
    try:
        found = {name: convert(name, value, kinds[name]) for name, value in given.items()}
        if odd := [n for n, value in found.items() if isinstance(value, int) and value < 0]:
            raise ValueError(f"{odd[0]} is {found[odd[0]]}; it must be at least 0")
    except ValueError as error:
        raise ValueError(f"{origin} holds no training state: {error}") from error
    return TrainingState(**found)


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
            value if name == "step" else torch.empty_like(p, dtype=value.dtype).copy_(value)
        )
    adam = "betas" in optimizer.defaults
    moments = {"step", "exp_avg", "exp_avg_sq"} if adam else {"momentum_buffer"}
    for p, its_own in optimizer.state.items():
        if set(its_own) != moments:
            raise ValueError(
                f"{origin} holds {sorted(its_own)} of a parameter of shape {tuple(p.shape)}; this "
                f"run's optimiser keeps {sorted(moments)}"
            )
