"""Several worker processes side by side, each with its share of the cores."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch

import metamirror as mm
from metamirror.console import say
from metamirror.experiments.comparison import worker
from metamirror.experiments.comparison.jobs import (
    RECORDS,
    Job,
    Place,
    Record,
    failed,
    write_record,
)
from metamirror.training.interrupts import InterruptedRun, Interrupts

TICK = 0.2
SECONDS_TO_SAVE = 60


class Board(Protocol):
    """Where people see how it goes."""

    def started(self, job: Job) -> None:
        """A job has begun."""

    def ended(self, job: Job, record: Record) -> None:
        """A job is done, or has failed."""

    def tick(self) -> None:
        """Some time has passed."""


class Worker:
    """A process, and the thread that hears its answers.

    It is in a session of its own, so that Ctrl-C reaches it once, through `stop`.
    """

    def __init__(self, threads: int, answers: queue.SimpleQueue[tuple[Worker, str]]):
        source = str(Path(mm.__file__).parents[1])
        known = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={
                **alone,
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": os.pathsep.join(known),
            },
        )
        self.ears = threading.Thread(target=self._hear, args=(answers,), daemon=True)
        self.ears.start()

    def _hear(self, answers: queue.SimpleQueue[tuple[Worker, str]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, line))
        answers.put((self, ""))

    def give(self, job: Job, place: Place) -> None:
        """Hands over a job."""
        where = {
            "out": str(place.out.absolute()),
            "device": place.device,
            "data_dir": None if place.data_dir is None else str(place.data_dir.absolute()),
        }
        assert self.process.stdin is not None
        # If it has died, its thread says so.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"job": asdict(job), "place": where}) + "\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        """Lets it save what it has, as Ctrl-C would."""
        self.process.terminate()

    def close(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()
        self.ears.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Pool:
    """Does jobs in worker processes. One that fails costs its own process and no other's.

    Args:
        place: where the work is done.
        jobs: how many processes at a time. Each has its share of the threads that torch has here.
    """

    def __init__(self, place: Place, jobs: int):
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}; it must be at least 1")
        self.place, self.jobs = place, jobs
        self.threads = max(1, torch.get_num_threads() // jobs)
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Job] = {}
        self._answers: queue.SimpleQueue[tuple[Worker, str]] = queue.SimpleQueue()

    def __enter__(self) -> Pool:
        return self

    def run(self, jobs: Iterable[Job], board: Board) -> None:
        """Does jobs and writes their records, until all have ended or it is asked to stop."""
        (self.place.out / RECORDS).mkdir(parents=True, exist_ok=True)
        waiting = deque(jobs)
        with Interrupts() as interrupts:
            while waiting or self._busy:
                while waiting and len(self._busy) < self.jobs:
                    self._start(waiting.popleft(), board)
                self._listen(board)
                if interrupts.received is not None:
                    self._stop()
                    raise InterruptedRun(interrupts.received)

    def _start(self, job: Job, board: Board) -> None:
        one = self._idle.pop() if self._idle else Worker(self.threads, self._answers)
        self._busy[one] = job
        one.give(job, self.place)
        board.started(job)

    def _listen(self, board: Board) -> None:
        try:
            one, line = self._answers.get(timeout=TICK)
        except queue.Empty:
            board.tick()
            return
        job = self._busy.pop(one, None)
        if job is None:
            if one in self._idle:
                self._idle.remove(one)
                one.close()
            return
        if line:
            answer = json.loads(line)
            record, sound = Record(**answer["record"]), answer["sound"]
        else:
            record, sound = failed(job, _last_words(one.process.wait())), False
        if sound:
            self._idle.append(one)
        else:
            one.close()
        write_record(self.place.out, job.name, record)
        board.ended(job, record)

    def _stop(self) -> None:
        """Every run saves where it stands; what is being judged is judged again another time."""
        for one in self._busy:
            one.stop()
        for one in list(self._busy):
            try:
                one.process.wait(SECONDS_TO_SAVE)
            except subprocess.TimeoutExpired:
                say("a run does not stop: it goes back to its last checkpoint")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in [*self._busy, *self._idle]:
            one.close()


def _last_words(code: int) -> str:
    """Why a process is gone that said nothing."""
    if code == -signal.SIGKILL:
        return "its process was killed, as the system does when memory runs out"
    if code < 0:
        return f"its process ended with {signal.Signals(-code).name}"
    return f"its process ended with code {code}"
