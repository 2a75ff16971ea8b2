"""Meta-training: a run that learns from tasks."""

from contextlib import ExitStack
from pathlib import Path

from metamirror.core.learner import Learner
from metamirror.data.image_ranges import write_seen
from metamirror.parallel.allocator import spare_memory_for
from metamirror.parallel.task_pool import TaskPool, processes_for
from metamirror.storage.checkpoint import parameters_of
from metamirror.training import divergence
from metamirror.training.config import RunConfig
from metamirror.training.distributed import joined_ranks
from metamirror.training.factory import build_learner, build_stream, resolved
from metamirror.training.initial_body import initial_body
from metamirror.training.interrupts import Interrupts
from metamirror.training.logs.registry import read_trackers
from metamirror.training.outer_loop import outer_loop
from metamirror.training.outer_step import build_optimizer
from metamirror.training.run import Run
from metamirror.training.source import TaskSource
from metamirror.training.user_modules import check_method


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    data_dir: Path | None = None,
    log: str = "",
    processes: int | None = 1,
) -> Learner:
    """Train a learner and leave a run folder; under torchrun, as one of its ranks.

    Args:
        config: what is trained, and how.
        out: the run folder.
        resume: continue from the last checkpoint; a folder that does not exist starts a new run.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
        log: trackers that get every figure too, such as tensorboard,mlflow,wandb,csv.
        processes: how many share the tasks of a step on CPUs; None for as many as make it fastest.
            Results do not depend on it.
    """
    config.check()
    if config.pretrains:
        raise ValueError(
            f"epochs is {config.epochs}: this is a configuration of metamirror pretrain, and "
            f"train learns from tasks; use the former, or give the run as init"
        )
    check_method(config)
    config = resolved(config)
    if processes is not None and not 1 <= processes <= config.tasks_per_step:
        raise ValueError(
            f"processes is {processes}; they share the {config.tasks_per_step} tasks of a step: "
            f"from 1 to as many"
        )
    read_trackers(log)
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks(device))
        stream = build_stream(config, "train", data_dir=data_dir)
        guessing = divergence.loss_of_guessing(stream)
        spare_memory_for(stream.example_shape)
        learner = build_learner(config, stream, ranks.device, initial_body(config, out, ranks))
        optimizer = build_optimizer(config, learner)
        source = TaskSource(learner, parameters_of(optimizer), stream, guessing, ranks)
        run = Run(config, out, ranks, source, learner, optimizer)
        if config.validate_every:
            run.validations[""] = build_stream(config, "val", batch=1, data_dir=data_dir)
        interrupts = stack.enter_context(Interrupts())
        run.open(stack, resume, log)
        if ranks.first:
            write_seen(out, stream)
        # Worker processes share this rank's tasks, if there are several.
        own = len(ranks.share(config.tasks_per_step))
        if processes is None:
            processes = processes_for(learner, stream.example_shape, own)
        if (processes := min(processes, own)) > 1:
            source.pool = stack.enter_context(TaskPool(learner, processes))
        outer_loop(run, interrupts, f"train {config.method}")
    return learner
