"""Algorithm 1 of the paper: the outer loop, read from top to bottom."""

import importlib.util
import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from metamirror.console import Progress, say, warn
from metamirror.core.learner import Learner
from metamirror.core.metrics import METRICS, Metric, metric_for
from metamirror.data import TaskStream
from metamirror.parallel.allocator import spare_memory_for
from metamirror.parallel.task_pool import TaskPool, processes_for
from metamirror.storage import checkpoint, learner_file
from metamirror.storage.checkpoint import TrainingState, parameters_of
from metamirror.training import collapse, divergence
from metamirror.training.collapse import CollapseError
from metamirror.training.config import RunConfig
from metamirror.training.device import place
from metamirror.training.distributed import Ranks, joined_ranks
from metamirror.training.divergence import NonFiniteError
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.factory import build_learner, build_stream, resolved
from metamirror.training.interrupts import InterruptedRun, Interrupts
from metamirror.training.metrics_log import MetricsLog
from metamirror.training.outer_step import (
    MetaGradient,
    blame,
    build_optimizer,
    clip,
    decay,
    descend,
    meta_gradient,
)
from metamirror.training.run_folder import locked_run
from metamirror.training.task_results import summary
from metamirror.training.user_modules import check_method


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
    """Train a learner and leave a run folder; under torchrun, as one of its ranks.

    Args:
        config: what is trained, and how.
        out: the run folder.
        resume: continue from the last checkpoint; a folder that does not exist starts a new run.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
        tensorboard: write TensorBoard events as well.
        processes: how many share the tasks of a step on CPUs; None for as many as make it fastest.
            Results do not depend on it.
    """
    config.check()
    check_method(config)
    config = resolved(config)
    if processes is not None and not 1 <= processes <= config.tasks_per_step:
        raise ValueError(
            f"processes is {processes}; they share the {config.tasks_per_step} tasks of a step: "
            f"from 1 to as many"
        )
    if tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("TensorBoard is not installed: pip install 'metamirror[tensorboard]'")
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks(device))
        stream = build_stream(config, "train", data_dir=data_dir)
        guessing = divergence.loss_of_guessing(stream)
        spare_memory_for(stream.example_shape)
        learner = build_learner(config, stream, ranks.device)
        metric = learner.settings.metric or metric_for(stream.task(0, 0).query.y)
        optimizer = build_optimizer(config, learner)
        run = Run(config, out, ranks, stream, guessing, metric, learner, optimizer)
        if config.validate_every:
            run.validation = build_stream(config, "val", batch=1, data_dir=data_dir)
        interrupts = stack.enter_context(Interrupts())
        run.open(stack, resume, tensorboard)
        pool = run.start_pool(stack, processes)
        title, done = f"train {config.method}", run.state.step
        progress = Progress(title, config.iterations, done=done, quiet=not ranks.first)
        stack.enter_context(progress)
        for step in range(run.state.step, config.iterations):
            stop = interrupts.received is not None
            # A function of the step: a resumed run, and every rank, has the same.
            learner.progress = step / config.iterations
            gradient = meta_gradient(
                learner, run.parameters, stream, step, ranks, stop=stop, pool=pool
            )
            if gradient.finite:
                run.count(gradient)
                clip(gradient.flat, config)
                descend(run.optimizer, gradient.flat, decay(config, step))
            else:
                run.skip(step, gradient)
            run.state.step = step + 1
            collapsed = run.watch(gradient)
            last = run.state.step == config.iterations
            run.log(last)
            progress.update(run.state.step, run.note(gradient))
            if collapsed and config.on_collapse == "stop":
                run.give_up(collapsed)
            if last or gradient.stop or run.state.step % config.checkpoint_every == 0:
                run.save()
            if gradient.stop and not last:
                if ranks.first:
                    say(f"stopped after step {step + 1}; continue with --resume --out {out}")
                ranks.part()
                raise InterruptedRun(interrupts.received or 2)
        ranks.part()
        run.check_end()
        learner.progress = 1.0
        return learner


@dataclass
class Run:
    """A run in training: its parts, and what happens to them beside the outer step."""

    config: RunConfig  # the run's settings.
    out: Path  # the run folder.
    ranks: Ranks  # the processes that compute it.
    stream: TaskStream  # the training tasks.
    guessing: float  # the loss of guessing on them.
    metric: Metric  # what is logged beside the loss; the loss itself, if nothing is.
    learner: Learner  # what is trained.
    optimizer: torch.optim.Optimizer  # what trains it.
    validation: TaskStream | None = None  # the validation tasks, if there are any.
    state: TrainingState = field(default_factory=TrainingState)  # how far the run has come.
    # the tensors of the learner with the best validation score.
    best: dict[str, Tensor] = field(default_factory=dict)
    metrics: MetricsLog = field(init=False)

    @property
    def parameters(self) -> list[Tensor]:
        """What the optimiser trains, in its order."""
        return parameters_of(self.optimizer)

    def open(self, stack: ExitStack, resume: bool, tensorboard: bool) -> None:
        """Lock the folder and load the newest checkpoint.

        The first rank alone touches the folder, and sends the checkpoint to the others.
        """
        config, out, ranks = self.config, self.out, self.ranks
        found, origin = None, out
        if ranks.first:
            stack.enter_context(
                locked_run(out, config, resume, ranks=ranks.world, data=self.stream.identity)
            )
            learner_file.check_continues(out / "last")
            found, origin = checkpoint.newest(out) or (None, out)
        content = ranks.from_first(found)
        if content:
            self.state, self.best = checkpoint.unpack(content, origin, self.learner, self.optimizer)
            if ranks.first and not self.stream.exact:
                warn(
                    f"{out} is continued on tasks from an iterator, after {self.state.step} steps' "
                    f"worth of them: unless it repeats itself, the result is not that of an "
                    f"undisturbed run"
                )
        if ranks.first:
            self.publish()
            self.metrics = stack.enter_context(
                MetricsLog(out, self.state.metrics_bytes, self.state.step, tensorboard)
            )
        if not content:
            self.save()
        elif self.state.step >= config.iterations and ranks.first:
            say(f"{out} is finished: all {config.iterations} iterations are done")

    def start_pool(self, stack: ExitStack, processes: int | None) -> TaskPool | None:
        """Start the worker processes that share this rank's tasks, if there are several."""
        own = len(self.ranks.share(self.config.tasks_per_step))
        if processes is None:
            processes = processes_for(self.learner, self.stream.example_shape, own)
        processes = min(processes, own)
        return stack.enter_context(TaskPool(self.learner, processes)) if processes > 1 else None

    def count(self, gradient: MetaGradient) -> None:
        """Add a good step to the sums behind the next line of metrics."""
        self.state.skipped_in_a_row = 0
        self.state.counted += 1
        self.state.losses += gradient.loss
        if not math.isnan(gradient.score):
            self.state.scores = (self.state.scores or 0.0) + self.metric.scale * gradient.score

    def skip(self, step: int, gradient: MetaGradient) -> None:
        """Write down which tasks are not finite; skip the step, or stop the run."""
        config, state, first = self.config, self.state, self.ranks.first
        tasks = blame(self.learner, self.parameters, self.stream, step, self.ranks, gradient.own)
        message = divergence.describe(config, step, tasks)
        if first and state.skipped < divergence.SKIPS_WRITTEN:
            divergence.write_tasks(self.out, config, self.stream, step, tasks)
        state.skipped_in_a_row += 1
        hopeless = state.skipped_in_a_row >= divergence.SKIPS_IN_A_ROW
        if config.on_nonfinite == "stop" or hopeless:
            state.skipped_in_a_row = 0
            self.save()  # the learner as it was, beside the task that it fails on
            self.ranks.part()
            raise NonFiniteError(f"{message}; {self.out / divergence.FOLDER} has the task")
        state.skipped += 1
        if first and state.skipped <= divergence.SKIPS_WRITTEN:
            warn(f"{message}; the step is skipped")

    def watch(self, gradient: MetaGradient) -> str | None:
        """Return what is wrong, once, with a run that has just fallen back to guessing."""
        state, config, learner = self.state, self.config, self.learner
        watched = gradient.finite and self.metric is METRICS["accuracy"]
        accuracy = 100 * gradient.score if watched else math.nan
        found = collapse.watch(state, accuracy, config, 1 / self.stream.chance)
        if found is None or state.collapsed:
            return None
        mean, fell = found
        signs = collapse.signs_of(learner, place(self.stream.task(state.step - 1, 0), learner))
        if not (fell or signs):
            return None  # it has not learned anything yet
        state.collapsed = True
        message = collapse.describe(state, mean, fell, config, signs)
        if self.ranks.first and config.on_collapse == "warn":
            warn(message)
        return message

    def give_up(self, message: str) -> NoReturn:
        """Stop a collapsed run; continued, it is watched as before."""
        self.state.collapsed = False
        self.save()
        self.ranks.part()
        raise CollapseError(f"{message}; {self.out} is kept")

    def log(self, last: bool) -> None:
        """Write a line of metrics where one is due: the means since the last one, a validation."""
        config, state = self.config, self.state
        line: dict[str, float | int | None] = {}
        stopping = state.collapsed and config.on_collapse == "stop"
        if state.counted and (last or stopping or state.step % config.log_every == 0):
            loss = line["loss"] = state.losses / state.counted
            if state.scores is not None:
                line[self.metric.name] = state.scores / state.counted
            factor = decay(config, state.step - 1)
            line["outer_lr"] = config.outer_lr * factor
            if config.geometry_lr is not None:
                line["geometry_lr"] = config.geometry_lr * factor
            line["skipped"] = state.skipped
            before = divergence.explosion(config, state, self.guessing)
            state.last_loss = loss
            if now := divergence.explosion(config, state, self.guessing):
                line["diverged"] = True
                if self.ranks.first and not before:
                    warn(now)
            if state.collapsed:
                line["collapsed"] = True
            state.losses, state.scores, state.counted = 0.0, None, 0
        if self.validation and (last or state.step % config.validate_every == 0):
            line |= self.validate(self.validation)
        if line and self.ranks.first:
            self.metrics.add(state.step, line)

    def validate(self, stream: TaskStream) -> dict[str, float]:
        """Evaluate on the validation tasks, and keep the learner if it is the best so far."""
        results = evaluate_stream(
            self.learner, stream, self.config.val_tasks, ranks=self.ranks, quiet=True
        )
        figures, best = summary(results), self.state.best_score
        measure = results[0].metric
        score = measure.worth(figures[measure.name])
        if math.isfinite(figures["loss"]) and (best is None or score > best):
            self.state.best_step, self.state.best_score = self.state.step, score
            self.best = {n: t.clone() for n, t in learner_file.tensors_of(self.learner).items()}
        return {f"val_{name}": value for name, value in figures.items()}

    def save(self) -> None:
        """Write a checkpoint, and the learners where `metamirror.load` finds them."""
        state = self.state
        if not all(torch.isfinite(p).all() for p in self.parameters):
            raise NonFiniteError(
                f"{self.config.method} itself is not finite after step {state.step}: the "
                f"checkpoint before is kept; lower outer_lr ({self.config.outer_lr})"
            )
        if not self.ranks.first:
            return
        try:
            state.metrics_bytes = self.metrics.settle()
            content = checkpoint.pack(self.learner, self.optimizer, state, self.best)
            checkpoint.write(self.out, state.step, content)
            self.publish()
        except OSError:
            say(f"step {state.step} is not saved; earlier checkpoints are: continue with --resume")
            raise

    def publish(self) -> None:
        """Write the best and the last learner where `metamirror.load` finds them."""
        learner_file.save(self.learner, self.out / "last", step=self.state.step)
        if self.best:
            step = self.state.best_step
            learner_file.save(self.learner, self.out / "best", step=step, tensors=self.best)

    def note(self, gradient: MetaGradient) -> str:
        """Return what a progress bar says beside the count."""
        words = [f"loss {gradient.loss:.4f}"]
        if not math.isnan(gradient.score):
            value = self.metric.shown(self.metric.scale * gradient.score, self.metric.digits - 1)
            words.append(f"{self.metric.name} {value}")
        if self.state.best_score is not None:
            words.append(f"best validation {abs(self.state.best_score):.4g}")
        return ", ".join(words)

    def check_end(self) -> None:
        """Refuse to call a run done that skipped every step, or diverged where it should stop."""
        if self.state.skipped and self.state.skipped == self.state.step:
            raise ValueError(
                f"{self.config.method} has learned nothing: the meta-loss or meta-gradient of all "
                f"{self.state.step} steps was not finite; lower lr ({self.config.lr})"
            )
        exploded = divergence.explosion(self.config, self.state, self.guessing)
        if exploded and self.config.on_nonfinite == "stop":
            raise ValueError(f"{exploded}; {self.out} is kept")
