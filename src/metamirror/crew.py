"""Processes that share the tasks of an outer step with this one, for as long as a run lasts.

Threads share Python's lock, for which they wait where operations are short: with small pictures.
Processes do not. They begin with a copy of the learner, are sent its tensors anew at every step,
and end when this process does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from collections.abc import Sequence
from itertools import chain
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metamirror.allocator import small_pictures, tune_allocator
from metamirror.meta_gradient import Gradients, Prepared, task_gradient
from metamirror.parallel import gains_by_threads
from metamirror.types import Batch, Params, Task

if TYPE_CHECKING:
    from metamirror.learner import Learner

Array = np.ndarray[Any, Any]


class CrewError(ChildProcessError):
    """A process of a crew that ended before its work did."""


class Crew:
    """One process for each share of the tasks; this one is the first of them.

        with mm.Crew(learner, processes=4) as crew:
            losses, gradient = learner.meta_gradient(tasks, crew=crew)

    The result is the same, to the bit, as without a crew. Only tensors of the learner may change
    afterwards, as by training. A script that starts a crew needs `if __name__ == "__main__":`,
    as Python's multiprocessing does.

    Args:
        learner: on the CPU, and such that it can be pickled.
        processes: this one included; torch's threads are shared out among them.
    """

    def __init__(self, learner: Learner, processes: int):
        if processes < 1:
            raise ValueError(f"processes is {processes}; it must be at least 1")
        if next(learner.parameters()).device.type != "cpu":
            raise ValueError("a crew works on CPUs, and the learner is not on one")
        if learner.vectorize:
            raise ValueError("torch.func.vmap does all tasks at once: leave vectorize off")
        self.learner = learner
        self.processes = processes
        self.threads = max(1, torch.get_num_threads() // processes)
        self._others: list[tuple[Any, Connection]] = []
        try:
            copy = pickle.dumps(learner)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the learner cannot be sent to another process ({error}): its classes and "
                f"functions must stand at the top of a module; or do without a crew"
            ) from error
        # Spawned, not forked: what torch's threads hold at a fork is held for ever after it.
        context = multiprocessing.get_context("spawn")
        for _ in range(processes - 1):
            here, there = context.Pipe()
            words = (there, copy, self.threads)
            process = context.Process(target=_serve, args=words, daemon=True)
            process.start()
            there.close()
            self._others.append((process, here))

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the other processes."""
        for process, pipe in self._others:
            process.kill()
            process.join()
            pipe.close()
        self._others = []

    def gradients(
        self,
        learner: Learner,
        tasks: Sequence[Task],
        noise: Sequence[Params],
        parameters: Sequence[Tensor],
    ) -> tuple[Prepared, list[Gradients]]:
        """What was prepared for the tasks, and what `task_gradient` gives for each, in order."""
        if learner is not self.learner:
            raise ValueError("this crew was made for another learner: make one for this")
        if learner.draws_noise:
            raise ValueError("the model draws random numbers, in the order of tasks: no crew then")
        if len(self._others) != self.processes - 1:
            raise CrewError("this crew has ended: make a new one")
        places = {id(p): i for i, p in enumerate(learner.parameters())}
        wanted = [places[id(p)] for p in parameters]
        shares = [range(i, len(tasks), self.processes) for i in range(self.processes)]
        try:
            state = [t.detach().numpy() for t in _tensors(learner)]
            for (_, pipe), share in zip(self._others, shares[1:], strict=True):
                own = [(_packed(tasks[i]), _arrays(noise[i])) for i in share]
                # Whether it has died is told by the answer that does not come.
                with contextlib.suppress(OSError):
                    pipe.send((state, wanted, own))
            # Each process prepares for itself: sending would take longer.
            prepared = Prepared(learner.prepare())
            found = [self._own_share(prepared, tasks, noise, parameters, shares[0])]
            found += [self._answer(i) for i in range(1, self.processes)]
        except BaseException:
            # Answers that nobody waits for would be taken for those of the next step.
            self.close()
            raise
        each = [found[i % self.processes][i // self.processes] for i in range(len(tasks))]
        return prepared, each

    def _own_share(
        self,
        prepared: Prepared,
        tasks: Sequence[Task],
        noise: Sequence[Params],
        parameters: Sequence[Tensor],
        share: range,
    ) -> list[Gradients]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return [
                task_gradient(self.learner, prepared, tasks[i], noise[i], parameters) for i in share
            ]
        finally:
            torch.set_num_threads(before)

    def _answer(self, number: int) -> list[Gradients]:
        process, pipe = self._others[number - 1]
        try:
            found = pipe.recv()
        except (EOFError, OSError) as error:
            process.join()
            code = process.exitcode or 0
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            )
            hint = "; the machine may lack the memory for it" if code == -signal.SIGKILL else ""
            raise CrewError(f"process {number} of a crew {how}{hint}") from error
        if isinstance(found, Exception):
            raise found
        return [[None if a is None else torch.from_numpy(a) for a in task] for task in found]


def processes_for(learner: Learner, example_shape: Sequence[int], tasks: int) -> int:
    """How many processes make a step on so many tasks fastest; 1 where threads are as good.

    With large pictures, operations are long enough for threads, which take less memory.
    """
    small = small_pictures(example_shape)
    if not small or learner.vectorize or not gains_by_threads(learner):
        return 1
    return max(1, min(torch.get_num_threads(), tasks))


def _serve(pipe: Connection, copy: bytes, threads: int) -> None:
    # Ctrl-C reaches every process of a terminal; the first one ends the others in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tune_allocator()
    torch.set_num_threads(threads)
    learner: Learner = pickle.loads(copy)  # from the process that started this one
    with contextlib.suppress(EOFError, ConnectionError):  # which has ended
        while True:
            state, wanted, own = pipe.recv()
            answer: object
            try:
                answer = _share(learner, state, wanted, own)
            except Exception as error:
                answer = error
            pipe.send(answer)


def _share(
    learner: Learner,
    state: Sequence[Array],
    wanted: Sequence[int],
    own: Sequence[tuple[list[Array], dict[str, Array]]],
) -> list[list[Array | None]]:
    with torch.no_grad():
        for tensor, value in zip(_tensors(learner), state, strict=True):
            tensor.copy_(torch.from_numpy(value))
    every = list(learner.parameters())
    parameters = [every[i] for i in wanted]
    prepared = Prepared(learner.prepare())
    found = []
    for packed, arrays in own:
        sx, sy, qx, qy = (torch.from_numpy(a) for a in packed)
        noise = {name: torch.from_numpy(a) for name, a in arrays.items()}
        task = Task(Batch(sx, sy), Batch(qx, qy))
        gradients = task_gradient(learner, prepared, task, noise, parameters)
        found.append([None if g is None else g.numpy() for g in gradients])
    return found


def _tensors(learner: Learner) -> list[Tensor]:
    return list(chain(learner.parameters(), learner.buffers()))


# Arrays, since torch would send tensors through shared memory, of which containers have little.


def _packed(task: Task) -> list[Array]:
    return [t.numpy() for batch in task for t in batch]


def _arrays(tensors: Params) -> dict[str, Array]:
    return {name: t.numpy() for name, t in tensors.items()}
