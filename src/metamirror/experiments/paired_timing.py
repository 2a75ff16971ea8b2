"""Programs measured against each other: each in its own process, one at work at a time.

What else the machine does drifts by tenths from minute to minute. Programs that take turns share
it, so that the ratio of two times of the same round is worth more than the times themselves; and
a process of its own gives each program a peak of memory that is its own.
"""

import contextlib
import math
import multiprocessing
import os
import platform
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metamirror.parallel.task_pool import exit_reason

Work = Callable[[], object]
RESAMPLES = 10_000
# A process that answers nothing for as long hangs; the slowest honest turn takes a minute.
PATIENCE = 1800.0


class ProgramError(ChildProcessError):
    """A program that ended before its work did."""


@dataclass(frozen=True)
class Program:
    """Something to measure.

    `prepare` is called once in the program's process and returns the work of one iteration. It is
    sent there, so that it must be picklable: a function of a module, or a partial of one.
    """

    name: str
    prepare: Callable[[], Work]
    threads: int = 1  # of torch, in that process


class Worker:
    """A program in a process of its own, which works when asked to; see `open_workers`."""

    def __init__(self, program: Program):
        self.program = program
        self.seconds: list[float] = []  # per iteration, of each turn taken
        # The same of all cores together; what others do on the machine moves it less.
        self.cpu_seconds: list[float] = []
        # The most memory that the process has held, torch included; and before its first iteration.
        self.peak_mb = self.idle_mb = math.nan
        self.repeats = 1
        # Spawned, not forked: a forked process would begin with its parent's memory.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # No daemon, since it may start processes of its own.
        self._process = context.Process(target=_serve, args=(theirs, program))
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Wait until the program is prepared."""
        self.idle_mb = self._answer()

    def warm_up(self, turn_seconds: float = 0.0) -> None:
        """Run iterations that do not count. The second one tells how many fill a turn."""
        self._work(1)
        if turn_seconds > 0:
            self.repeats = max(1, round(turn_seconds / max(self._work(1)[0], 1e-6)))

    def take_turn(self) -> None:
        """Take one turn, and note its seconds per iteration."""
        seconds, cpu_seconds = self._work(self.repeats)
        self.seconds.append(seconds)
        self.cpu_seconds.append(cpu_seconds)

    def _work(self, repeats: int) -> tuple[float, float]:
        # If it died, `_answer` says so.
        with contextlib.suppress(OSError):
            self._pipe.send(repeats)
        seconds, cpu_seconds, self.peak_mb = self._answer()
        return seconds / repeats, cpu_seconds / repeats

    def _answer(self) -> Any:
        name = self.program.name
        try:
            if not self._pipe.poll(PATIENCE):
                raise ProgramError(f"{name} has not answered for {PATIENCE:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join()
            how = exit_reason(self._process.exitcode)
            raise ProgramError(f"the process of {name} {how}") from error
        if kind == "mistake":
            raise ValueError(f"{name}: {value}")
        if kind == "failure":
            failed = ProgramError(f"{name} failed: {value.splitlines()[-1]}")
            failed.add_note(value)
            raise failed
        return value

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, program: Program) -> None:
    # Ctrl-C reaches every process of a terminal; the parent ends this one in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(program.threads)
    try:
        work = program.prepare()
        pipe.send(("ready", peak_mb()))
        # Until whoever asked for this has ended.
        with contextlib.suppress(EOFError):
            while repeats := pipe.recv():
                began, cpu_began = time.perf_counter(), cpu_seconds()
                for _ in range(repeats):
                    work()
                spent = time.perf_counter() - began, cpu_seconds() - cpu_began
                pipe.send(("done", (*spent, peak_mb())))
    except ValueError as error:
        pipe.send(("mistake", str(error)))
    except Exception:
        pipe.send(("failure", traceback.format_exc().strip()))


@contextlib.contextmanager
def open_workers(programs: Iterable[Program]) -> Iterator[list[Worker]]:
    """Start a worker for each program, all prepared; they end with the block."""
    with contextlib.ExitStack() as stack:
        workers: list[Worker] = []
        for program in programs:
            workers.append(Worker(program))
            stack.callback(workers[-1].close)
            # One after the other: preparing may take more memory than working.
            workers[-1].wait()
        yield workers


def peak_mb() -> float:
    """Return the most memory that this process and its children have held, in megabytes.

    That of a GPU is added.
    """
    return host_mb() + device_mb()


def device_mb() -> float:
    """Return the most memory that this process has held of a GPU; of Apple's, what it holds."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() / (1 << 20)
    if torch.backends.mps.is_available():
        return torch.mps.driver_allocated_memory() / (1 << 20)
    return 0.0


def host_mb() -> float:
    """Return the sum of the peaks of this process and its children, in megabytes.

    Pages that a child shares with others are counted once, in its parent's peak.
    """
    # Not getrusage, whose peak a new process inherits from the one that started it.
    if own := _kilobytes("self", "status", "VmHWM"):
        children = (
            _kilobytes(pid, "status", "VmHWM") - _kilobytes(pid, "smaps_rollup", r"Shared_\w+")
            for pid in _children()
        )
        return (own + sum(children)) / 1024
    import resource  # which Windows lacks

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def cpu_seconds() -> float:
    """Return what this process and its living children have spent on all cores, where known."""
    # A process's name may hold anything, in brackets; the 14th and 15th fields are clock ticks.
    children = [_proc(pid, "stat").rpartition(")")[2].split()[11:13] for pid in _children()]
    ticks = sum(int(field) for fields in children for field in fields)
    return time.process_time() + (ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0)


def _children() -> list[str]:
    return _proc("self", f"task/{os.getpid()}/children").split()


def _kilobytes(pid: str, file: str, key: str) -> int:
    """Return the sum of a key's values in what Linux says of a process."""
    return sum(int(value) for value in re.findall(rf"{key}:\s*(\d+)", _proc(pid, file)))


def _proc(pid: str, name: str) -> str:
    """Return what Linux says of a process; nothing if it has ended, or on another system."""
    try:
        return Path("/proc", pid, name).read_text()
    except OSError:
        return ""


def take_turns(
    workers: Sequence[Worker],
    rounds: int,
    *,
    turn_seconds: float = 0.0,
    after_turn: Callable[[Worker], None] = lambda worker: None,
) -> dict[str, list[float]]:
    """Return seconds per iteration by program, for `rounds` turns of each.

    Who goes first changes from round to round. A worker that has worked before is not warmed up
    again. A turn is a single iteration unless `turn_seconds` says how long it should be.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; at least one is needed")
    for worker in workers:
        if not worker.seconds:
            worker.warm_up(turn_seconds)
    for r in range(rounds):
        first = r % len(workers)
        for worker in (*workers[first:], *workers[:first]):
            worker.take_turn()
            after_turn(worker)
    return {worker.program.name: worker.seconds[-rounds:] for worker in workers}


@dataclass(frozen=True)
class Ratio:
    """The median of the ratios of paired times, with its bootstrap interval of 95 %."""

    median: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.interval[0]:.2f}, {self.interval[1]:.2f}]"


def ratio(times: Sequence[float], others: Sequence[float], seed: int = 0) -> Ratio:
    """Return how long `times` are against `others`, pair by pair.

    >>> ratio([2.0, 4.1, 6.0], [1.0, 2.0, 3.0]).median
    2.0
    """
    ratios = np.asarray(times, dtype=float) / np.asarray(others, dtype=float)
    drawn = np.random.default_rng(seed).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), (float(low), float(high)))


def machine(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return what a measurement depends on beside the program."""
    found = {"torch": torch.__version__, "threads": threads, "cores": os.cpu_count()}
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return {**found, "device": device, "device_name": name}
