"""A worker process: it receives tasks and the learner's tensors, and returns gradients."""

import contextlib
import pickle
import signal
import threading
import traceback
from collections.abc import Iterable, Sequence
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.outer_gradient import Prepared, task_gradient
from metamirror.core.tasks import Task
from metamirror.core.trees import mapped, registered
from metamirror.parallel.allocator import tune_allocator

Array = np.ndarray[Any, Any]

STOPS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C reaches every process of a terminal, and SIGTERM all of a job's: the first one decides."""


def serve(pipe: Connection, copy: bytes, not_its_own: Sequence[Connection] = ()) -> None:
    """Answer the process behind the pipe, whose learner is pickled in `copy`, until it ends."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    for other in not_its_own:
        other.close()
    # In a new thread: OpenMP's threads belong to the one that began them, and none outlives a fork.
    worker = threading.Thread(target=_answer, args=(pipe, copy))
    worker.start()
    worker.join()


def _answer(pipe: Connection, copy: bytes) -> None:
    tune_allocator()
    learner: Any = None
    unknown: object = None
    try:
        learner = pickle.loads(copy)  # from the process that started this one
    except Exception as error:
        unknown = ValueError(
            f"the learner cannot be read by another process ({error}): its classes must stand in "
            f"a module that can be imported, not in a notebook; or use no pool"
        )
    with contextlib.suppress(EOFError, ConnectionError):  # it has
        while True:
            *words, threads = pipe.recv()
            torch.set_num_threads(threads)
            try:
                answer = unknown or _share(learner, *words)
            except Exception as error:
                answer = _sendable(error)
            pipe.send(answer)


def _sendable(error: Exception) -> Exception:
    """Return the error with its traceback as a note, or one like it that can be pickled."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _share(
    learner: Learner,
    progress: float,
    state: Sequence[Array],
    wanted: Sequence[int],
    own: Sequence[tuple[Any, dict[str, Array]]],
) -> list[list[Array | None]]:
    learner.progress = progress
    with torch.no_grad():
        for tensor, value in zip(tensors_of(learner), state, strict=True):
            tensor.copy_(torch.from_numpy(value))
    every = list(learner.parameters())
    parameters = [every[i] for i in wanted]
    prepared = Prepared(learner.prepare())
    found = []
    for numbers, arrays in own:
        for part in chain(*numbers):
            registered(part)  # which it is in the first process alone
        task: Task = mapped(torch.from_numpy, numbers)
        noise = {name: torch.from_numpy(a) for name, a in arrays.items()}
        gradients = task_gradient(learner, prepared, task, noise, parameters)
        found.append([None if g is None else g.numpy() for g in gradients])
    return found


def tensors_of(learner: Learner) -> list[Tensor]:
    """Return all tensors that training changes."""
    return list(chain(learner.parameters(), learner.buffers()))


def arrays(tensors: Iterable[Tensor]) -> list[Array]:
    """Return what is sent: torch would use shared memory, of which containers have little."""
    return [t.detach().numpy() for t in tensors]
