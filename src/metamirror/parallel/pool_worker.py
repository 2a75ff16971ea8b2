"""A worker process: it receives tasks and the learner's tensors, and returns gradients."""

import contextlib
import pickle
import signal
import traceback
from collections.abc import Sequence
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.outer_gradient import Prepared, task_gradient
from metamirror.core.tasks import Batch, Params, Task
from metamirror.parallel.allocator import tune_allocator

Array = np.ndarray[Any, Any]

STOPS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C reaches every process of a terminal, and SIGTERM all of a job's: the first one decides."""


def serve(pipe: Connection, copy: bytes) -> None:
    """Answer until the process that asks has ended.

    Args:
        pipe: to that process.
        copy: its learner, pickled.
    """
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    tune_allocator()
    learner: Learner | None = None
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
            answer: object
            if learner is None:
                answer = unknown
            else:
                torch.set_num_threads(threads)
                try:
                    answer = _share(learner, *words)
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
    state: Sequence[Array],
    wanted: Sequence[int],
    own: Sequence[tuple[list[Array], dict[str, Array]]],
) -> list[list[Array | None]]:
    with torch.no_grad():
        for tensor, value in zip(tensors_of(learner), state, strict=True):
            tensor.copy_(torch.from_numpy(value))
    every = list(learner.parameters())
    parameters = [every[i] for i in wanted]
    prepared = Prepared(learner.prepare())
    found = []
    for numbers, arrays in own:
        sx, sy, qx, qy = (torch.from_numpy(a) for a in numbers)
        noise = {name: torch.from_numpy(a) for name, a in arrays.items()}
        task = Task(Batch(sx, sy), Batch(qx, qy))
        gradients = task_gradient(learner, prepared, task, noise, parameters)
        found.append([None if g is None else g.numpy() for g in gradients])
    return found


def tensors_of(learner: Learner) -> list[Tensor]:
    """Return all tensors that training changes."""
    return list(chain(learner.parameters(), learner.buffers()))


# Arrays, since torch would send tensors through shared memory, of which containers have little.


def values_of(learner: Learner) -> list[Array]:
    """Return their values, to be sent."""
    return [t.detach().numpy() for t in tensors_of(learner)]


def packed(task: Task) -> list[Array]:
    """Return a task, to be sent."""
    return [t.detach().numpy() for batch in task for t in batch]


def arrays_of(tensors: Params) -> dict[str, Array]:
    """Return a task's noise, to be sent."""
    return {name: t.numpy() for name, t in tensors.items()}
