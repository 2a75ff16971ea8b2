"""What every launcher does: give out jobs, watch them, run again what was lost."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from metamirror.console import say
from metamirror.experiments.comparison.jobs import Job, Record, failed, read_record, write_record
from metamirror.storage import checkpoint
from metamirror.storage.locks import try_lock
from metamirror.training.interrupts import InterruptedRun, Interrupts

TICK = 0.02
SECONDS_TO_SAVE = 60
SECONDS_BETWEEN_CLAIMS = 0.5
MOST_LOSSES = 5
"""So many times in a row may a job be lost without having come further; then it has failed."""


class Board(Protocol):
    """Something that shows how the jobs go."""

    def started(self, job: Job, place: str) -> None:
        """Take note that a job has begun, and where."""

    def lost(self, job: Job, reason: str) -> None:
        """Take note that a job's worker is gone, and that the job waits again."""

    def ended(self, job: Job, record: Record) -> None:
        """Take note that a job is done, or has failed."""

    def tick(self) -> None:
        """Take note that some time has passed."""


class Attempt(Protocol):
    """A job that was given out."""

    def place(self) -> str | None:
        """Return where it runs; None while it waits for its turn."""

    def ended(self) -> str | None:
        """Return how its worker ended, such as "was killed by SIGKILL"; None while it works."""

    def stop(self) -> None:
        """Ask its worker to save and to end, and return without waiting for it."""


@dataclass
class _Running:
    job: Job
    attempt: Attempt
    claim: FileLock
    shown: bool = False  # whether the board knows where it runs


class Launcher(contextlib.ExitStack, ABC):
    """Something that runs jobs. Closing it, or leaving its `with` block, ends what it started.

    A job that fails stops no other. Several commands may work on one folder: each job is locked
    by the one that runs it, and the others wait for its record.
    """

    room: int  # how many jobs are given out at a time.
    here: bool = False  # whether jobs run on this machine.

    @abstractmethod
    def submit(self, job: Job) -> Attempt:
        """Give out one job. Its description is in `job.description`, for a worker to read."""

    def run(self, jobs: Sequence[Job], board: Board) -> None:
        """Run jobs until each has left its record; raise `InterruptedRun` if asked to stop.

        A job's worker writes its record. A job whose worker is lost is run again, and continues
        from its last checkpoint; the launcher writes the record of one that is lost too often.
        """
        queue = _Queue(self, jobs, board)
        with Interrupts() as interrupts:
            try:
                while queue.waiting or queue.running:
                    queue.fill()
                    if not queue.collect():
                        time.sleep(TICK)
                        board.tick()
                    if interrupts.received is not None:
                        queue.stop()
                        raise InterruptedRun(interrupts.received)
            except BaseException:
                self.close()
                raise
            finally:
                queue.release()


def refuse_less_than_one(**options: int) -> None:
    """Refuse options that count something and are below 1."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


class _Queue:
    """The jobs of one call of `run`."""

    def __init__(self, launcher: Launcher, jobs: Sequence[Job], board: Board):
        self.launcher, self.board = launcher, board
        self.waiting = list(jobs)
        self.running: list[_Running] = []
        self.elsewhere: set[str] = set()
        self.losses: Counter[str] = Counter()
        self.progress: dict[str, list[str]] = {}
        self.looked = 0.0

    def fill(self) -> None:
        """Give out jobs while there is room; look at those of other commands now and then."""
        look = time.monotonic() - self.looked > SECONDS_BETWEEN_CLAIMS
        if look:
            self.looked = time.monotonic()
        for job in list(self.waiting):
            if len(self.running) >= self.launcher.room:
                return
            if job.name in self.elsewhere and not look:
                continue
            job.describe()
            if (claim := try_lock(job.description.with_suffix(".lock"))) is None:
                self.elsewhere.add(job.name)
                continue
            self.waiting.remove(job)
            record = read_record(job)
            # What failed before is tried again, but not at once after another command tried it.
            if record is not None and (record.done or job.name in self.elsewhere):
                claim.release()
                self.board.started(job, "another command")
                self.board.ended(job, record)
                continue
            # What an earlier attempt left must not be taken for this one's.
            job.file("json").unlink(missing_ok=True)
            self.running.append(_Running(job, self.launcher.submit(job), claim))

    def collect(self) -> bool:
        """Take in what has ended since the last time; return whether something has."""
        ended = False
        for entry in list(self.running):
            how = entry.attempt.ended()
            if not entry.shown and (place := entry.attempt.place()) is not None:
                entry.shown = True
                self.board.started(entry.job, place)
            if how is None:
                continue
            ended = True
            self.running.remove(entry)
            record = read_record(entry.job)
            if record is None and self._lost(entry.job) >= MOST_LOSSES:
                record = write_record(entry.job, failed(f"its process {how}"))
            entry.claim.release()
            if record is not None:
                self.board.ended(entry.job, record)
            else:
                self.waiting.insert(0, entry.job)
                self.board.lost(entry.job, how)
        return ended

    def _lost(self, job: Job) -> int:
        """Count a loss; return how many there were since the job last came further."""
        now = []
        if job.folder is not None:
            now = [file.name for file in checkpoint.files(Path(job.out, job.folder))]
        if now != self.progress.get(job.name):
            self.losses[job.name] = 0
        self.progress[job.name] = now
        self.losses[job.name] += 1
        return self.losses[job.name]

    def stop(self) -> None:
        """Let every run save its state; what is being evaluated is evaluated again later."""
        for entry in self.running:
            entry.attempt.stop()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        left = self.running
        while left and time.monotonic() < deadline:
            time.sleep(TICK)
            left = [entry for entry in left if entry.attempt.ended() is None]
        for entry in left:
            say(f"{entry.job.name} does not stop: it will continue from its last checkpoint")

    def release(self) -> None:
        """Let other commands have what is left."""
        for entry in self.running:
            entry.claim.release()
