"""Threads that compute, so that the one that answers never waits for them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from metamirror.playground import limits
from metamirror.playground.refusal import Refusal

Result = TypeVar("Result")


class Workers:
    """A thread for each core, and a queue that has an end.

    Args:
        threads: that compute at a time, each with one of torch's.
        most_waiting: tasks in the queue.
    """

    def __init__(self, threads: int | None = None, most_waiting: int = limits.MOST_WAITING):
        threads = threads or os.cpu_count() or 1
        self._most = threads + most_waiting
        self._count = 0
        self._lock = threading.Lock()
        # torch's number of threads belongs to the thread that sets it.
        self._pool = ThreadPoolExecutor(
            threads, "playground", initializer=torch.set_num_threads, initargs=(1,)
        )

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The function's result, once a thread has had time for it."""
        return await asyncio.wrap_future(self.submit(function, *arguments))

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """The function's result to come, if there is room in the queue."""
        with self._lock:
            if self._count >= self._most:
                raise Refusal(
                    503,
                    f"{self._count} requests are waiting already; try again in a moment",
                    retry_after=limits.RETRY_SECONDS,
                )
            self._count += 1
        future = self._pool.submit(function, *arguments)
        future.add_done_callback(self._done)
        return future

    def close(self) -> None:
        """Lets go of what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, _: Future[Any]) -> None:
        with self._lock:
            self._count -= 1
