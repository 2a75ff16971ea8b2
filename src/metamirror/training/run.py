"""A run in training: its parts, and what happens to them beside the outer step."""

import math
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from metamirror.console import say, warn
from metamirror.core.learner import Learner
from metamirror.core.metrics import METRICS
from metamirror.data import TaskStream
from metamirror.storage import checkpoint, learner_file
from metamirror.storage.checkpoint import TrainingState, parameters_of
from metamirror.training import collapse, divergence
from metamirror.training.collapse import CollapseError
from metamirror.training.config import RunConfig
from metamirror.training.device import place
from metamirror.training.distributed import Ranks
from metamirror.training.divergence import DivergedError, NonFiniteError
from metamirror.training.evaluate import evaluate_stream
from metamirror.training.logs.log import Logs, Opening
from metamirror.training.logs.metrics_file import MetricsFile
from metamirror.training.logs.registry import open_trackers
from metamirror.training.logs.task_image import task_image
from metamirror.training.outer_step import OuterGradient, decay
from metamirror.training.run_folder import locked_run, recorded
from metamirror.training.source import Source
from metamirror.training.task_results import summary


@dataclass
class Run:
    """Everything that a run consists of while it is trained."""

    config: RunConfig  # the run's settings.
    out: Path  # the run folder.
    ranks: Ranks  # the processes that compute it.
    source: Source  # what it learns from.
    learner: Learner  # what is trained.
    optimizer: torch.optim.Optimizer  # what trains it.
    # the validation tasks, if there are any, by a name where there are several kinds.
    validations: dict[str, TaskStream] = field(default_factory=dict)
    state: TrainingState = field(default_factory=TrainingState)  # how far the run has come.
    # the tensors of the learner with the best validation score.
    best: dict[str, Tensor] = field(default_factory=dict)
    metrics: MetricsFile = field(init=False)
    logs: Logs = field(init=False)

    @property
    def parameters(self) -> list[Tensor]:
        """What the optimiser trains, in its order."""
        return parameters_of(self.optimizer)

    def open(self, stack: ExitStack, resume: bool, log: str) -> None:
        """Lock the folder, load the newest checkpoint, and open the logs.

        The first rank alone touches the folder, and sends the checkpoint to the others.
        """
        config, out, ranks = self.config, self.out, self.ranks
        found, origin = None, out
        if ranks.first:
            stack.enter_context(
                locked_run(out, config, resume, ranks=ranks.world, data=self.source.stream.identity)
            )
            learner_file.check_continues(out / "last")
            found, origin = checkpoint.newest(out) or (None, out)
        content = ranks.from_first(found)
        if content:
            self.state, self.best = checkpoint.unpack(
                content, origin, self.learner, self.optimizer, self.source.beside
            )
            if ranks.first and not self.source.stream.exact:
                warn(
                    f"{out} is continued on tasks from an iterator, after {self.state.step} steps' "
                    f"worth of them: unless it repeats itself, the result is not that of an "
                    f"undisturbed run"
                )
        if ranks.first:
            self.publish()
            self.metrics = MetricsFile(out, self.state.metrics_bytes, self.state.step)
            opening = Opening(out, self.state.step, asdict(config), recorded(out))
            self.logs = stack.enter_context(Logs(open_trackers(log, opening), self.metrics))
            if log and not content and (image := task_image(self.source.stream)):
                self.logs.image("task", image)
        if not content:
            self.save()
        elif self.state.step >= config.iterations and ranks.first:
            say(f"{out} is finished: all {config.iterations} iterations are done")

    def count(self, gradient: OuterGradient) -> None:
        """Add a good step to the sums behind the next line of metrics."""
        self.state.skipped_in_a_row = 0
        self.state.counted += 1
        self.state.losses += gradient.loss
        if not math.isnan(gradient.score):
            score = self.source.metric.scale * gradient.score
            self.state.scores = (self.state.scores or 0.0) + score

    def skip(self, step: int, gradient: OuterGradient) -> None:
        """Write down what is not finite; skip the step, or stop the run."""
        config, state, first = self.config, self.state, self.ranks.first
        tasks = self.source.blame(step, gradient)
        message = divergence.describe(config, step, tasks)
        if tasks and first and state.skipped < divergence.SKIPS_WRITTEN:
            divergence.write_tasks(self.out, config, self.source.stream, step, tasks)
        state.skipped_in_a_row += 1
        hopeless = state.skipped_in_a_row >= divergence.SKIPS_IN_A_ROW
        if config.on_nonfinite == "stop" or hopeless:
            state.skipped_in_a_row = 0
            self.save()  # the learner as it was, beside the task that it fails on
            self.ranks.part()
            where = f"; {self.out / divergence.FOLDER} has the task" if tasks else ""
            raise NonFiniteError(f"{message}{where}")
        state.skipped += 1
        if first and state.skipped <= divergence.SKIPS_WRITTEN:
            warn(f"{message}; the step is skipped")

    def watch(self, gradient: OuterGradient) -> str | None:
        """Return what is wrong, once, with a run that has just fallen back to guessing."""
        state, config, learner = self.state, self.config, self.learner
        watched = gradient.finite and self.source.metric is METRICS["accuracy"]
        accuracy = 100 * gradient.score if watched else math.nan
        found = collapse.watch(state, accuracy, config, 1 / self.source.chance)
        if found is None or state.collapsed:
            return None
        mean, fell = found
        task = self.source.stream.task(state.step - 1, 0)
        signs = collapse.signs_of(learner, place(task, learner))
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
                line[self.source.metric.name] = state.scores / state.counted
            factor = decay(config, state.step - 1)
            line["outer_lr"] = config.outer_lr * factor
            if config.geometry_lr is not None:
                line["geometry_lr"] = config.geometry_lr * factor
            line["skipped"] = state.skipped
            before = divergence.explosion(config, state, self.source.guessing)
            state.last_loss = loss
            if now := divergence.explosion(config, state, self.source.guessing):
                line["diverged"] = True
                if self.ranks.first and not before:
                    warn(now)
            if state.collapsed:
                line["collapsed"] = True
            state.losses, state.scores, state.counted = 0.0, None, 0
        if self.validations and (last or state.step % config.validate_every == 0):
            line |= self.validate()
        if line and self.ranks.first:
            self.logs.add(state.step, line)

    def validate(self) -> dict[str, float]:
        """Evaluate on the validation tasks, and keep the learner if it is the best so far."""
        results = {
            name: evaluate_stream(
                self.learner, stream, self.config.val_tasks, ranks=self.ranks, quiet=True
            )
            for name, stream in self.validations.items()
        }
        every = [result for some in results.values() for result in some]
        figures, measure, best = summary(every), every[0].metric, self.state.best_score
        score = measure.worth(figures[measure.name])
        if math.isfinite(figures["loss"]) and (best is None or score > best):
            self.state.best_step, self.state.best_score = self.state.step, score
            self.best = {n: t.clone() for n, t in learner_file.tensors_of(self.learner).items()}
        line = {f"val_{name}": value for name, value in figures.items()}
        if len(results) > 1:
            name = measure.name
            line |= {f"val_{name}_{kind}": summary(r)[name] for kind, r in results.items()}
        return line

    def save(self) -> None:
        """Write a checkpoint, and the learners where `metamirror.load` finds them."""
        state = self.state
        if not all(torch.isfinite(p).all() for p in self.parameters):
            raise NonFiniteError(
                f"{self.config.title} itself is not finite after step {state.step}: the "
                f"checkpoint before is kept; lower outer_lr ({self.config.outer_lr})"
            )
        if not self.ranks.first:
            return
        try:
            state.metrics_bytes = self.metrics.settle()
            content = checkpoint.pack(
                self.learner, self.optimizer, state, self.best, self.source.beside
            )
            checkpoint.write(self.out, state.step, content)
            self.publish()
        except OSError:
            say(f"step {state.step} is not saved; earlier checkpoints are: continue with --resume")
            raise

    def publish(self) -> None:
        """Write the best and the last learner where `metamirror.load` finds them."""
        learner_file.publish(self.learner, self.out / "last", step=self.state.step)
        if self.best:
            step = self.state.best_step
            learner_file.publish(self.learner, self.out / "best", step=step, tensors=self.best)

    def note(self, gradient: OuterGradient) -> str:
        """Return what a progress bar says beside the count."""
        words = [f"loss {gradient.loss:.4f}"]
        if not math.isnan(gradient.score):
            metric = self.source.metric
            value = metric.shown(metric.scale * gradient.score, metric.digits - 1)
            words.append(f"{metric.name} {value}")
        if self.state.best_score is not None:
            words.append(f"best validation {abs(self.state.best_score):.4g}")
        return ", ".join(words)

    def check_end(self) -> None:
        """Refuse to call a run done that skipped every step, or diverged where it should stop."""
        if self.state.skipped and self.state.skipped == self.state.step:
            raise ValueError(
                f"{self.config.title} has learned nothing: the loss or gradient of all "
                f"{self.state.step} steps was not finite; lower {divergence.rates(self.config)}"
            )
        exploded = divergence.explosion(self.config, self.state, self.source.guessing)
        if exploded and self.config.on_nonfinite == "stop":
            raise DivergedError(f"{exploded}; {self.out} is kept")
