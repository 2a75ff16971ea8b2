"""Every method side by side on built-in letters, within a few minutes and without a download."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from metamirror.console import Progress
from metamirror.core.files import write_json
from metamirror.experiments.comparison.jobs import Job, Record
from metamirror.experiments.comparison.launchers.launcher import Launcher
from metamirror.experiments.comparison.launchers.local import LocalLauncher
from metamirror.experiments.comparison.plan import jobs_of, make_rows, open_streams
from metamirror.experiments.comparison.protocol import make_protocol
from metamirror.experiments.comparison.spec import Spec
from metamirror.experiments.comparison.table import make_table
from metamirror.methods import METHODS
from metamirror.training.config import RunConfig

BASE = RunConfig(
    method="maml",
    data="glyphs",
    model="conv4",
    width=16,
    shots=1,
    queries=5,
    # One inner step: more tasks are seen in the time. With five, so few tasks showed no clear lead
    # of the learned maps in pilot runs.
    steps=1,
    lr=0.2,
    # A larger outer step than in longer runs: there are a few hundred of them.
    outer_lr=3e-3,
    # The last learner is the result: nothing is selected.
    validate_every=0,
    log_every=10,
    checkpoint_every=10_000,
)
SHOWN = [key for key, m in METHODS.items() if m.group in ("paper", "control") or key == "gradnet"]
"""The paper's table, the mirror map of this library, and the control."""
FIRST_ROUND = 3
SHARE_TO_BEGIN, SHARE_OF_THE_REST = 0.5, 0.6
FEWEST_TASKS, MOST_TASKS, SHARE_FOR_EVALUATING = 20, 200, 0.15
TASK_IN_ITERATIONS = 0.35
"""What it costs to evaluate all methods on a task, in iterations of all; measured, rounded up."""
SECONDS_AT_THE_END = 4.0


def quickstart(minutes: float, out: Path, seed: int = 0) -> dict[str, Any]:
    """Train the methods `SHOWN` in turns, equally long in iterations, until the time is up.

    Leaves what `compare` leaves: a run folder for each method, and table.json, which is returned.
    """
    began = time.monotonic()
    if not 0 < minutes < float("inf"):
        raise ValueError(f"minutes is {minutes}; it must be above 0")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty: choose another folder with --out, or remove it")
    base = replace(BASE, seed=seed)
    base.check()
    spec = Spec(base, SHOWN, [BASE.shots], out, device="cpu")
    streams = open_streams(spec)
    stream = streams["train", BASE.shots]
    # Networks this small lose more by being shared between threads than they gain.
    processes = min(torch.get_num_threads(), len(SHOWN))
    with LocalLauncher(processes) as launcher, Progress("quickstart", 100) as progress:
        clock = _Clock(progress, began, 60 * minutes)
        runs = [job for job in jobs_of(make_rows(spec, stream)) if job.work == "run"]
        done, tasks = _train_in_turns(runs, launcher, clock)
        spec = replace(spec, base=replace(base, iterations=done), test_tasks=tasks)
        rows = make_rows(spec, stream)
        clock.note = f"{done} iterations each, {tasks} test tasks"
        launcher.run(jobs_of(rows), clock)
        progress.update(100, clock.note)
    table = make_table(make_protocol(spec, rows, streams, None), rows, clock.records)
    write_json(out / "table.json", table)
    return table


def _train_in_turns(runs: list[Job], launcher: Launcher, clock: "_Clock") -> tuple[int, int]:
    """Train in rounds in which every method advances equally far.

    Later rounds are sized by earlier ones. Returns the iterations done, and for how many test tasks
    there is time.
    """

    def advance(more: int) -> float:
        """Do one round; return the seconds that an iteration of all methods took."""
        clock.note = f"to {done + more} iterations each"
        began = time.monotonic()
        turns = [
            replace(job, config=job.config | {"iterations": done + more}, tasks=0) for job in runs
        ]
        launcher.run(turns, clock)
        return (time.monotonic() - began) / more

    done, tasks = 0, FEWEST_TASKS
    # Processes start and torch warms up: what this round takes says nothing of the others.
    advance(1)
    done, more = 1, FIRST_ROUND
    while more > 0 and clock.seconds_left() > SHARE_TO_BEGIN * clock.seconds * (done == 1):
        seconds = advance(more)
        done += more
        a_task = seconds * TASK_IN_ITERATIONS
        fitting = round(SHARE_FOR_EVALUATING * clock.seconds / a_task)
        tasks = min(MOST_TASKS, max(FEWEST_TASKS, fitting))
        left = clock.seconds_left() - a_task * tasks - SECONDS_AT_THE_END
        # Most of what is left at first, then less: the last rounds end near the deadline.
        fit = int(left / seconds)
        more = fit if fit <= FIRST_ROUND else int(SHARE_OF_THE_REST * fit)
        if more < 0.03 * done:
            break
    return done, tasks


class _Clock:
    """Shows how much of the time is used."""

    def __init__(self, progress: Progress, began: float, seconds: float):
        self.progress, self.began, self.seconds = progress, began, seconds
        self.note = ""
        self.records: dict[str, Record] = {}

    def seconds_left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def started(self, job: Job, place: str) -> None:
        self.tick()

    def lost(self, job: Job, reason: str) -> None:
        self.tick()

    def ended(self, job: Job, record: Record) -> None:
        self.records[job.name] = record
        self.tick()

    def tick(self) -> None:
        used = 1 - self.seconds_left() / self.seconds
        self.progress.update(min(99, round(100 * used)), self.note)
