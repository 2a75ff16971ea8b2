"""Algorithm 1 of the paper: the outer loop, read from top to bottom."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from metamirror.console import Progress, say, warn
from metamirror.core.learner import Learner
from metamirror.data import TaskStream
from metamirror.parallel.allocator import spare_memory_for
from metamirror.parallel.processes import Crew, processes_for
from metamirror.storage import checkpoint, learner_file
from metamirror.storage.checkpoint import Standing
from metamirror.training import divergence
from metamirror.training.config import RunConfig
from metamirror.training.distributed import joined_ranks
from metamirror.training.divergence import NonFiniteError
from metamirror.training.evaluate import ALONE, evaluate_stream, summary
from metamirror.training.factory import build_learner, build_stream
from metamirror.training.interrupts import InterruptedRun, Interrupts
from metamirror.training.metrics_log import Tracker, check_tensorboard
from metamirror.training.outer_step import (
    blame,
    build_optimizer,
    clip,
    decay,
    descend,
    meta_gradient,
    parameters_of,
)
from metamirror.training.run_folder import claimed


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    data_dir: Path | None = None,
    tensorboard: bool = False,
    processes: int | None = 1,
) -> Learner:
    """Trains a learner and leaves a run folder; under torchrun, as one of its ranks.

    Args:
        config: what is trained, and how.
        out: the run folder.
        resume: go on from the last checkpoint in it, if there is one.
        device: auto, cpu, cuda or mps.
        data_dir: where the data are, if not in the usual place.
        tensorboard: write events for TensorBoard as well.
        processes: of a `Crew` that shares each step's tasks, this one included; None for as many
            as make it fastest. A rank that has fewer tasks takes fewer.
    """
    config.check()
    if processes is not None and not 1 <= processes <= config.tasks_per_step:
        raise ValueError(
            f"processes is {processes}; they share the {config.tasks_per_step} tasks of a step: "
            f"from 1 to as many"
        )
    if tensorboard:
        check_tensorboard()
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks(device))
        stream = build_stream(config, "train", data_dir=data_dir)
        validation = (
            build_stream(config, "val", batch=1, data_dir=data_dir)
            if config.validate_every
            else None
        )
        spare_memory_for(stream.example_shape)
        learner = build_learner(config, stream, ranks.device)
        optimizer = build_optimizer(config, learner)
        parameters = parameters_of(optimizer)
        standing, best = Standing(), dict[str, Tensor]()
        interrupts = stack.enter_context(Interrupts())

        # The first rank alone touches the folder, and tells the others where the run stands.
        found, origin = None, out
        if ranks.first:
            stack.enter_context(
                claimed(
                    out,
                    config,
                    resume=resume,
                    ranks=ranks.world,
                    data=stream.identity,
                )
            )
            found, origin = checkpoint.newest(out) or (None, out)
        content = ranks.from_first(found)
        if content:
            standing, best = checkpoint.unpack(content, origin, learner, optimizer)
        if ranks.first:
            publish(learner, best, standing, out)
            tracker = stack.enter_context(
                Tracker(out, standing.metrics_bytes, standing.step, tensorboard)
            )
        own = len(ranks.share(config.tasks_per_step))
        if processes is None:
            processes = processes_for(learner, stream.example_shape, own)
        processes = min(processes, own)
        crew = stack.enter_context(Crew(learner, processes)) if processes > 1 else None
        progress = stack.enter_context(
            Progress(
                f"train {config.method}",
                config.iterations,
                done=standing.step,
                quiet=not ranks.first,
            )
        )

        def save() -> None:
            """A checkpoint of the run as it stands."""
            if not all(torch.isfinite(p).all() for p in parameters):
                raise NonFiniteError(
                    f"{config.method} itself is not finite after step {standing.step}: the "
                    f"checkpoint before is kept; lower outer_lr ({config.outer_lr})"
                )
            if not ranks.first:
                return
            try:
                standing.metrics_bytes = tracker.settle()
                content = checkpoint.pack(learner, optimizer, standing, best)
                checkpoint.write(out, standing.step, content)
                publish(learner, best, standing, out)
            except OSError:
                say(f"step {standing.step} is not saved, what was is kept; go on with --resume")
                raise

        if not content:
            save()
        elif standing.step >= config.iterations and ranks.first:
            say(f"{out} is finished: all {config.iterations} iterations are done")
        for step in range(standing.step, config.iterations):
            gradient = meta_gradient(
                learner,
                parameters,
                stream,
                step,
                ranks,
                stop=interrupts.received is not None,
                crew=crew,
            )
            if gradient.finite:
                standing.skipped_in_a_row = 0
                standing.counted += 1
                standing.losses += gradient.loss
                if not math.isnan(gradient.accuracy):
                    standing.accuracies = (standing.accuracies or 0.0) + gradient.accuracy
                clip(gradient.flat, config)
                descend(optimizer, gradient.flat, decay(config, step))
            else:
                tasks = blame(learner, parameters, stream, step, ranks, gradient.own)
                message = divergence.describe(config, step, tasks)
                if ranks.first and standing.skipped < divergence.SKIPS_WRITTEN:
                    divergence.write_tasks(out, config, stream, step, tasks)
                standing.skipped_in_a_row += 1
                if config.on_nonfinite == "stop" or divergence.hopeless(standing.skipped_in_a_row):
                    standing.skipped_in_a_row = 0
                    save()  # the learner as it was, beside the task that it fails on
                    ranks.part()
                    raise NonFiniteError(f"{message}; {out / divergence.FOLDER} has the task")
                standing.skipped += 1
                if ranks.first and standing.skipped <= divergence.SKIPS_WRITTEN:
                    warn(f"{message}; the step is skipped")
            standing.step = step + 1
            last = standing.step == config.iterations

            line: dict[str, float | int | None] = {}
            if standing.counted and (last or standing.step % config.log_every == 0):
                line["loss"] = standing.losses / standing.counted
                if standing.accuracies is not None:
                    line["accuracy"] = standing.accuracies / standing.counted
                line["outer_lr"] = config.outer_lr * decay(config, step)
                if config.geometry_lr is not None:
                    line["geometry_lr"] = config.geometry_lr * decay(config, step)
                line["skipped"] = standing.skipped
                standing.losses, standing.accuracies, standing.counted = 0.0, None, 0
            if validation and (last or standing.step % config.validate_every == 0):
                results = evaluate_stream(
                    learner, validation, config.val_tasks, ranks=ranks, quiet=True
                )
                figures = summary(results)
                line.update((f"val_{name}", value) for name, value in figures.items())
                score = figures.get("accuracy", -figures["loss"])
                if math.isfinite(figures["loss"]) and score > (
                    -math.inf if standing.best_score is None else standing.best_score
                ):
                    standing.best_step, standing.best_score = standing.step, score
                    best = {n: t.clone() for n, t in learner_file.tensors_of(learner).items()}
            if line and ranks.first:
                tracker.add(standing.step, line)
            progress.update(standing.step, _note(gradient.loss, gradient.accuracy, standing))
            if last or gradient.stop or standing.step % config.checkpoint_every == 0:
                save()
            if gradient.stop and not last:
                if ranks.first:
                    say(f"stopped after step {standing.step}; go on with --resume --out {out}")
                ranks.part()
                raise InterruptedRun(interrupts.received or 2)
        ranks.part()
        return learner


def publish(learner: Learner, best: dict[str, Tensor], standing: Standing, out: Path) -> None:
    """The learners of a checkpoint where `metamirror.load` finds them."""
    description = learner_file.describe(learner)
    learner_file.write(out / "last", description, learner_file.tensors_of(learner), standing.step)
    if best:
        learner_file.write(out / "best", description, best, standing.best_step)


def _note(loss: float, accuracy: float, standing: Standing) -> str:
    words = [f"loss {loss:.4f}"]
    if not math.isnan(accuracy):
        words.append(f"accuracy {accuracy:.1f} %")
    if standing.best_score is not None:
        words.append(f"best validation {abs(standing.best_score):.4g}")
    return ", ".join(words)


def outer_step(
    learner: Learner, optimizer: torch.optim.Optimizer, stream: TaskStream, step: int
) -> float:
    """One step of the outer level alone, with an optimiser of one's own; returns the meta-loss."""
    parameters = parameters_of(optimizer)
    ranks = replace(ALONE, device=parameters[0].device)
    gradient = meta_gradient(learner, parameters, stream, step, ranks)
    if not gradient.finite:
        raise NonFiniteError(
            f"the meta-loss or its gradient is not finite at step {step}: lower lr ({learner.lr}) "
            f"or the outer rate"
        )
    descend(optimizer, gradient.flat, 1.0)
    return gradient.loss
