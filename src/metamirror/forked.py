"""One function over many tasks, in processes that share this one's memory.

Threads of Python wait for each other between operations, which costs much where operations are
short. A fork has all that its parent has, parameters included, without a copy; it does its share of
the tasks, sends the results through a pipe, and ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Tensors = list[Tensor | None]


def can_fork() -> bool:
    """Whether a forked process may go on computing: not on macOS, nor where CUDA has threads."""
    return sys.platform == "linux" and not torch.cuda.is_available()


def over_tasks_forked(
    function: Callable[[Item], Tensors], items: Sequence[Item], workers: int
) -> Iterator[Tensors]:
    """function(item) for every item, in their order; this process does its share itself."""
    threads = torch.get_num_threads()
    share = max(1, threads // workers)
    helpers = [Helper(function, items[i::workers], share) for i in range(1, workers)]
    torch.set_num_threads(share)
    try:
        for i, item in enumerate(items):
            who = i % workers
            yield function(item) if who == 0 else helpers[who - 1].result()
    finally:
        torch.set_num_threads(threads)
        for helper in helpers:
            helper.end()


class Helper:
    """A forked process, and a thread that reads what it has to say."""

    def __init__(self, function: Callable[[Any], Tensors], items: Sequence[Any], threads: int):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on: threads are not forked. The child uses none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _work(function, items, threads, writing)
        os.close(writing)
        self._answers: SimpleQueue[tuple[bool, Any] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def result(self) -> Tensors:
        """The next one, or the error in its place."""
        answer = self._answers.get()
        if answer is None:
            raise MemoryError("a process that worked on a task has gone: was there memory for it?")
        done, value = answer
        if not done:
            raise value
        return [None if array is None else torch.from_numpy(array) for array in value]

    def end(self) -> None:
        """Stops it, if it is still at work."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._reader.join()

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as pipe:
            while True:
                try:
                    self._answers.put(pickle.load(pipe))
                except (EOFError, pickle.UnpicklingError):
                    self._answers.put(None)
                    return


def _work(
    function: Callable[[Any], Tensors], items: Sequence[Any], threads: int, writing: int
) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        # Ctrl-C reaches every process of a terminal; the parent decides what becomes of the step.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(threads)
        with os.fdopen(writing, "wb") as pipe:
            for item in items:
                answer: tuple[bool, Any]
                try:
                    found = function(item)
                    answer = True, [None if t is None else t.detach().numpy() for t in found]
                except Exception as error:
                    answer = False, error
                pickle.dump(answer, pipe, protocol=5)
                pipe.flush()
        code = 0
    finally:
        # Without what Python does at its end: that is the parent's to do.
        os._exit(code)
