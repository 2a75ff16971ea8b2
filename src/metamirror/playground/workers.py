"""Threads that compute, so that the one that answers never waits for them."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from starlette.exceptions import HTTPException

from metamirror.playground import limits

Result = TypeVar("Result")


class Workers:
    """Threads, each with one of torch's and by default one for each core; the queue has an end."""

    def __init__(self, threads: int | None = None, most_waiting: int = limits.MOST_WAITING):
        threads = threads or os.cpu_count() or 1
        self._room = threading.Semaphore(threads + most_waiting)
        # torch's number of threads belongs to the thread that sets it.
        self._pool = ThreadPoolExecutor(
            threads, "playground", initializer=torch.set_num_threads, initargs=(1,)
        )

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Return the function's result to come, if there is room in the queue."""
        if not self._room.acquire(blocking=False):
            raise HTTPException(
                503,
                "too many requests are waiting already; try again in a moment",
                {"retry-after": str(limits.RETRY_SECONDS)},
            )
        future = self._pool.submit(function, *arguments)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self) -> None:
        """Cancel what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)
