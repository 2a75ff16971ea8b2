"""One function over many tasks, in as many threads as torch has.

Tasks are independent, so that a thread per task uses the cores better than all threads in every
operation of one task; torch lets go of Python's lock while it computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

if TYPE_CHECKING:
    from metamirror.core.learner import Learner

Item = TypeVar("Item")
Result = TypeVar("Result")


def over_tasks(
    learner: Learner, function: Callable[[Learner, Item], Result], items: Sequence[Item]
) -> Iterator[Result]:
    """function(learner, item) for every item, in their order.

    Each thread gets a double of the learner, with the same parameters, since running a module with
    other parameters (`torch.func.functional_call`) changes it for the time being.

    Args:
        learner: whose tasks they are.
        function: what to do for each; it must not change the learner.
        items: one per task.
    """
    workers = min(len(items), torch.get_num_threads())
    doubles = _doubles(learner, workers) if workers > 1 and gains_by_threads(learner) else []
    if not doubles:
        yield from (function(learner, item) for item in items)
        return
    idle: SimpleQueue[Learner] = SimpleQueue()
    for double in doubles:
        idle.put(double)

    def run(item: Item) -> Result:
        double = idle.get()
        try:
            return function(double, item)
        finally:
            idle.put(double)

    # torch's number of threads belongs to the thread that sets it.
    share = (threads_per_task(len(items)),)
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=share) as pool:
        yield from pool.map(run, items)


def threads_per_task(tasks: int) -> int:
    """How many of torch's threads each of so many tasks has: more change the rounding of sums."""
    threads = torch.get_num_threads()
    return threads // max(1, min(tasks, threads))


def gains_by_threads(learner: Learner) -> bool:
    """Whether tasks run side by side: on a CPU, where the work is in torch and not in Python.

    A model that draws random numbers has to draw them in the order of the tasks.
    """
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in learner.model.modules())
    on_cpu = next(learner.parameters()).device.type == "cpu"
    return convolves and on_cpu and not learner.draws_noise


def _doubles(learner: Learner, count: int) -> list[Learner]:
    """Copies of the learner that share its tensors; none if it holds what cannot be copied."""
    shared = {id(t): t for t in chain(learner.parameters(), learner.buffers())}
    try:
        return [copy.deepcopy(learner, dict(shared)) for _ in range(count)]
    except (TypeError, RuntimeError):
        return []
