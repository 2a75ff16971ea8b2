"""A pool of processes that share the tasks of each outer step, for as long as a run lasts.

Threads wait for Python's lock where operations are short, as with small images; processes do not.
A worker begins with a copy of the learner, gets its tensors and its progress at every step, and
ends with the pool.
"""

import contextlib
import multiprocessing
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.outer_gradient import Gradients, Prepared, task_gradient
from metamirror.core.settings import Settings
from metamirror.core.task_threads import gains_by_threads, threads_per_task
from metamirror.core.tasks import Params, Task
from metamirror.core.trees import mapped
from metamirror.parallel.allocator import small_images
from metamirror.parallel.pool_worker import STOPS, arrays, serve, tensors_of


class TaskPoolError(ChildProcessError):
    """A worker process ended before its work did."""


class TaskPool(contextlib.AbstractContextManager["TaskPool"]):
    """Processes that share the tasks of an outer step; this process takes the first share.

        with mm.TaskPool(learner, processes=4) as pool:
            losses, gradient = learner.meta_gradient(tasks, pool=pool)

    The result is the same, to the bit, as without a pool: a task has as many of torch's threads
    either way. Only the values of the learner's tensors and its `progress` may change
    afterwards, as training does. A script that starts a pool needs `if __name__ == "__main__":`, as
    Python's multiprocessing does.

    Args:
        learner: on the CPU, and such that it can be pickled.
        processes: this one included; more than there are tasks find nothing to do.
    """

    def __init__(self, learner: Learner, processes: int):
        if processes < 1:
            raise ValueError(f"processes is {processes}; it must be at least 1")
        if next(learner.parameters()).device.type != "cpu":
            raise ValueError("a pool works on CPUs, and the learner is not on one")
        if learner.settings.vectorize:
            raise ValueError("torch.func.vmap does all tasks at once: leave vectorize off")
        self.learner = learner
        self.processes = processes
        self._settings = _settings(learner)
        self._others: list[tuple[Any, Connection]] = []
        # Also when nobody closes it, and before Python waits for its children at the end.
        self._end = Finalize(self, _end_all, (self._others,), exitpriority=0)
        try:
            copy = pickle.dumps(learner)
            arrays(tensors_of(learner))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the learner cannot be sent to another process ({error}): its classes and "
                f"functions must stand at the top of a module; or use no pool"
            ) from error
        context = _context()
        for _ in range(processes - 1):
            here, there = context.Pipe()
            # A forked process has the other ends too, and would never see that this one ended.
            forked = context.get_start_method() == "fork"
            not_its_own = [here, *(pipe for _, pipe in self._others)] if forked else []
            process = context.Process(target=serve, args=(there, copy, not_its_own), daemon=True)
            with _signals_blocked(), warnings.catch_warnings():
                # Of the threads of numerical libraries, which outlive a fork; see `_context`.
                warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
                process.start()
                self._others.append((process, here))
            there.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._end()

    def gradients(
        self,
        learner: Learner,
        tasks: Sequence[Task],
        noise: Sequence[Params],
        parameters: Sequence[Tensor],
    ) -> tuple[Prepared, list[Gradients]]:
        """Return what was prepared, and what `task_gradient` gives for each task, in order."""
        if learner is not self.learner:
            raise ValueError("this pool was made for another learner: make one for this")
        if learner.draws_noise:
            raise ValueError("the model draws random numbers in the tasks' order: use no pool")
        if len(self._others) != self.processes - 1:
            raise TaskPoolError("this pool has ended: make a new one")
        now = _settings(learner)
        if changed := [name for name, value in self._settings.items() if value != now[name]]:
            names = ", ".join(changed)
            raise ValueError(f"{names} changed since this pool was made: make a new one")
        places = {id(p): i for i, p in enumerate(learner.parameters())}
        wanted = [places[id(p)] for p in parameters]
        shares = [range(i, len(tasks), self.processes) for i in range(self.processes)]
        before, threads = torch.get_num_threads(), threads_per_task(len(tasks))
        try:
            state = arrays(tensors_of(learner))
            for (_, pipe), share in zip(self._others, shares[1:], strict=True):
                own = [
                    (
                        mapped(lambda t: t.detach().numpy(), tasks[i]),
                        {name: t.numpy() for name, t in noise[i].items()},
                    )
                    for i in share
                ]
                # If it died, recv() raises.
                with contextlib.suppress(OSError):
                    pipe.send((learner.progress, state, wanted, own, threads))
            found: list[list[Gradients] | Exception] = []
            try:
                # Each process prepares for itself: sending would take longer.
                prepared = Prepared(learner.prepare())
                torch.set_num_threads(threads)
                found.append(
                    [
                        task_gradient(learner, prepared, tasks[i], noise[i], parameters)
                        for i in shares[0]
                    ]
                )
            except Exception as error:
                found.append(error)
            finally:
                torch.set_num_threads(before)
            found += [self._answer(i) for i in range(1, self.processes)]
        except BaseException:
            # Answers that nobody waits for would be taken for those of the next step.
            self.close()
            raise
        each: list[Gradients] = []
        for i in range(len(tasks)):
            part = found[i % self.processes]
            if isinstance(part, Exception):
                raise part
            each.append(part[i // self.processes])
        return prepared, each

    def _answer(self, number: int) -> list[Gradients] | Exception:
        process, pipe = self._others[number - 1]
        try:
            found = pipe.recv()
        except (EOFError, OSError) as error:
            process.join()
            reason = exit_reason(process.exitcode)
            raise TaskPoolError(f"worker process {number} {reason}") from error
        if isinstance(found, Exception):
            return found
        return [[None if a is None else torch.from_numpy(a) for a in task] for task in found]


def processes_for(learner: Learner, example_shape: Sequence[int], tasks: int) -> int:
    """Return how many processes make a step on so many tasks fastest; 1 where threads do as well.

    With large images, operations are long enough for threads, which take less memory.
    """
    small = small_images(example_shape)
    if not small or learner.settings.vectorize or not gains_by_threads(learner):
        return 1
    return max(1, min(torch.get_num_threads(), tasks))


def exit_reason(code: int | None) -> str:
    """Return how a process ended, in words that follow its name.

    >>> exit_reason(-9)
    'was killed by SIGKILL; the machine may lack the memory for it'
    >>> exit_reason(1)
    'ended with exit code 1'
    """
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    hint = "; the machine may lack the memory for it" if code == -9 else ""
    return f"was killed by {name}{hint}"


def _end_all(others: list[tuple[Any, Connection]]) -> None:
    while others:
        process, pipe = others.pop()
        process.kill()
        process.join()
        pipe.close()


def _context() -> Any:
    """Return how a worker process begins: forked where that is safe, and spawned elsewhere.

    A forked process shares the pages of torch and of the learner with this one. What other threads
    of Python hold at a fork would be held for ever after it, and so would a GPU's state.
    """
    alone = threading.active_count() == 1 and not torch.cuda.is_initialized()
    return multiprocessing.get_context("fork" if alone and sys.platform == "linux" else "spawn")


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block `STOPS` while a process starts, until it can ignore them itself."""
    if not hasattr(signal, "pthread_sigmask"):  # as on Windows
        yield
        return
    # It lets the signals through when it starts, which the first process would make it do.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _settings(learner: Learner) -> dict[str, object]:
    """Return what a gradient depends on beside tensors, which workers learn at their start."""
    return {
        **{field.name: getattr(learner.settings, field.name) for field in fields(Settings)},
        "prior": learner.prior,
        "objective": learner.objective,
        "train or eval mode": [m.training for m in learner.modules()],
        "a tensor's kind": [(t.dtype, t.shape, t.requires_grad) for t in tensors_of(learner)],
    }
