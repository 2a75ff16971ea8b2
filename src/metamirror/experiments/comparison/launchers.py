"""Where the jobs of a comparison run: on this machine, or wherever a launcher sends them."""

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

import torch

from metamirror.console import say
from metamirror.experiments.comparison import worker
from metamirror.experiments.comparison.jobs import Job, Record, failed, read_record, write_record
from metamirror.parallel.task_pool import exit_reason
from metamirror.training.interrupts import InterruptedRun, Interrupts

TICK = 0.2
SECONDS_TO_SAVE = 60

Process = subprocess.Popen[str]


class Board(Protocol):
    """Something that shows how the jobs go."""

    def started(self, job: Job) -> None:
        """Take note that a job has begun."""

    def ended(self, job: Job, record: Record) -> None:
        """Take note that a job is done, or has failed."""

    def tick(self) -> None:
        """Take note that some time has passed."""


class Launcher(Protocol):
    """Something that runs jobs. A job that fails stops no other."""

    def run(self, jobs: Sequence[Job], board: Board) -> None:
        """Run jobs until each has left its record; raise `InterruptedRun` if asked to stop.

        A job's worker writes its record. The launcher writes it for a worker that died.
        """


class LocalLauncher(contextlib.ExitStack):
    """Runs jobs in worker processes. A job that fails costs its own process and no other's.

    A process takes one job after the other: importing torch takes longer than a short job. Closing
    it, or leaving its `with` block, ends the processes.

    Args:
        processes: how many at a time; they share the threads that torch has here.
    """

    def __init__(self, processes: int):
        super().__init__()
        if processes < 1:
            raise ValueError(f"jobs is {processes}; it must be at least 1")
        self.processes = processes
        self.threads = max(1, torch.get_num_threads() // processes)
        self._processes: list[Process] = []

    def run(self, jobs: Sequence[Job], board: Board) -> None:
        waiting = deque(jobs)
        running: dict[Future[bool], tuple[Job, Process]] = {}
        with ThreadPoolExecutor(self.processes) as threads, Interrupts() as interrupts:
            try:
                while waiting or running:
                    while waiting and len(running) < self.processes:
                        job = waiting.popleft()
                        # What an earlier attempt left must not be taken for this one's.
                        job.file("json").unlink(missing_ok=True)
                        process = self._free_process([busy for _, busy in running.values()])
                        running[threads.submit(_answered, process, job)] = job, process
                        board.started(job)
                    ended, _ = wait(running, TICK, FIRST_COMPLETED)
                    for future in ended:
                        job, process = running.pop(future)
                        how = "left no record that can be read"
                        if not future.result():
                            how = exit_reason(process.wait())
                            _end(process)
                        record = read_record(job) or write_record(job, failed(f"its process {how}"))
                        board.ended(job, record)
                    if not ended:
                        board.tick()
                    if interrupts.received is not None:
                        _stop([process for _, process in running.values()])
                        raise InterruptedRun(interrupts.received)
            except BaseException:
                # The threads wait for answers until the processes have ended.
                self.close()
                raise

    def _free_process(self, busy: Sequence[Process]) -> Process:
        for process in self._processes:
            if process not in busy and process.poll() is None:
                return process
        process = _start(self.threads)
        self._processes.append(process)
        self.callback(_end, process)
        return process


def _start(threads: int) -> Process:
    """Start a worker, in a session of its own: Ctrl-C must reach it once, through its launcher."""
    known = [str(Path(worker.__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-m", worker.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**alone, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(known)},
    )


def _answered(process: Process, job: Job) -> bool:
    """Give a process a job and wait; False if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    # If it has died, no answer comes.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(job.line() + "\n")
        process.stdin.flush()
    return bool(process.stdout.readline())


def _stop(processes: Sequence[Process]) -> None:
    """Let every run save its state; what is being evaluated is evaluated again later."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            say("a run does not stop: it will continue from its last checkpoint")


def _end(process: Process) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
