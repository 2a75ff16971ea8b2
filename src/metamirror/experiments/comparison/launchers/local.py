"""Worker processes on this machine, each with its share of the cores."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from metamirror.console import say
from metamirror.experiments.comparison import worker
from metamirror.experiments.comparison.jobs import Job, Record, failed, read_record, write_record
from metamirror.experiments.comparison.launchers import Board
from metamirror.parallel.exit_reasons import exit_reason
from metamirror.training.interrupts import InterruptedRun, Interrupts

TICK = 0.2
SECONDS_TO_SAVE = 60

Process = subprocess.Popen[str]


class LocalLauncher:
    """Runs jobs in worker processes. A job that fails costs its own process and no other's.

    A process takes one job after the other: importing torch takes longer than a short job. Closing
    it, or leaving its `with` block, ends the processes.

    Args:
        processes: how many at a time; they share the threads that torch has here.
    """

    def __init__(self, processes: int):
        if processes < 1:
            raise ValueError(f"jobs is {processes}; it must be at least 1")
        self.processes = processes
        self.threads = max(1, torch.get_num_threads() // processes)
        self._idle: list[Process] = []
        self._busy: list[Process] = []

    def __enter__(self) -> LocalLauncher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, jobs: Sequence[Job], board: Board) -> None:
        """Run jobs until each has left its record; if asked to stop, let each save its state."""
        waiting = deque(jobs)
        running: dict[Future[bool], tuple[Job, Process]] = {}
        with ThreadPoolExecutor(self.processes) as threads, Interrupts() as interrupts:
            try:
                while waiting or running:
                    while waiting and len(running) < self.processes:
                        job = waiting.popleft()
                        # What an earlier attempt left must not be taken for this one's.
                        job.file("json").unlink(missing_ok=True)
                        process = self._free_process()
                        running[threads.submit(_answered, process, job)] = job, process
                        board.started(job)
                    ended, _ = wait(running, TICK, FIRST_COMPLETED)
                    for future in ended:
                        job, process = running.pop(future)
                        board.ended(job, self._outcome(job, process, future.result()))
                    if not ended:
                        board.tick()
                    if interrupts.received is not None:
                        self._stop()
                        raise InterruptedRun(interrupts.received)
            except BaseException:
                # The threads wait for answers until the processes have ended.
                self.close()
                raise

    def _free_process(self) -> Process:
        process = next((p for p in self._idle if p.poll() is None), None)
        if process is None:
            process = _start(self.threads)
        else:
            self._idle.remove(process)
        self._busy.append(process)
        return process

    def _outcome(self, job: Job, process: Process, answered: bool) -> Record:
        self._busy.remove(process)
        if answered:
            self._idle.append(process)
            reason = "it left no record that can be read"
        else:
            reason = f"its process {exit_reason(process.wait())}"
            _close([process])
        return read_record(job) or write_record(job, failed(reason))

    def _stop(self) -> None:
        """Let every run save its state; what is being evaluated is evaluated again later."""
        for process in self._busy:
            process.terminate()
        for process in self._busy:
            try:
                process.wait(SECONDS_TO_SAVE)
            except subprocess.TimeoutExpired:
                say("a run does not stop: it will continue from its last checkpoint")

    def close(self) -> None:
        """End all processes."""
        _close([*self._busy, *self._idle])
        self._busy, self._idle = [], []


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


def _close(processes: Iterable[Process]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
