"""One run on new tasks, at every inner step: losses, gradient norms and the query's figure."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from metamirror.core.files import write_atomically
from metamirror.core.metrics import Metric, described, metric_in
from metamirror.data import TaskStream
from metamirror.storage import tensor_file
from metamirror.training.config import load_config
from metamirror.training.distributed import Ranks
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.evaluate_run import loaded, warn_of_other_data
from metamirror.training.factory import use_precision

Paths = tuple[Metric, Tensor]
"""The query's measure; support losses, gradient norms and it, as (3, tasks, k = 0..N)."""


def measure(
    run: Path,
    stream: TaskStream,
    *,
    tasks: int,
    steps: int,
    which: Literal["best", "last"],
    ranks: Ranks,
    title: str = "",
) -> Paths:
    """Adapt a run to the first tasks of a stream, and look at every step up to N."""
    learner, _ = loaded(run, which)
    config = load_config(run)
    use_precision(learner, config)
    warn_of_other_data(run, config.data, stream)
    learner = learner.to(ranks.device)
    # Loss and gradient at a point are known once a step is taken from there: hence one more.
    results = evaluate_stream(
        learner, stream, tasks, steps=steps + 1, every_step=True, ranks=ranks, title=title
    )
    values = [
        [r.support_losses for r in results],
        [r.grad_norms for r in results],
        [r.figures[: steps + 1] for r in results],
    ]
    return results[0].metric, torch.tensor(values, dtype=torch.float64)


def write(file: Path, paths: Paths) -> None:
    """Write what was measured, bit for bit."""
    metric, values = paths
    write_atomically(file, tensor_file.pack({"values": values}, described(metric)))


def read(file: Path) -> Paths:
    """Read what `write` wrote."""
    tensors, facts = tensor_file.read(file)
    return metric_in(facts), tensors["values"]
