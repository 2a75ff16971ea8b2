"""One function over many tasks, in as many threads as torch has.

Tasks are independent, so that a thread per task uses the cores better than all threads in every
operation of one task; torch lets go of Python's lock while it computes.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import nn

Learner = TypeVar("Learner", bound=Any)
Item = TypeVar("Item")
Result = TypeVar("Result")


def over_tasks(
    learner: Learner, function: Callable[[Learner, Item], Result], items: Sequence[Item]
) -> Iterator[Result]:
    """Yield function(learner, item) for every item, in their order, without changing the learner.

    Each thread gets a replica of the learner, with the same parameters, since running a module with
    other parameters (`torch.func.functional_call`) changes it while it runs.
    """
    workers = min(len(items), torch.get_num_threads())
    replicas = _replicas(learner, workers) if workers > 1 and gains_by_threads(learner) else []
    if not replicas:
        yield from (function(learner, item) for item in items)
        return
    idle: SimpleQueue[Learner] = SimpleQueue()
    for replica in replicas:
        idle.put(replica)

    def run(item: Item) -> Result:
        replica = idle.get()
        try:
            return function(replica, item)
        finally:
            idle.put(replica)

    # torch's number of threads belongs to the thread that sets it.
    share = (threads_per_task(len(items)),)
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=share) as pool:
        yield from pool.map(run, items)


def threads_per_task(tasks: int) -> int:
    """Return how many of torch's threads each task has: more change the rounding of sums."""
    threads = torch.get_num_threads()
    return threads // max(1, min(tasks, threads))


def gains_by_threads(learner: Any) -> bool:
    """Return whether tasks run side by side: on a CPU, where the work is in torch, not in Python.

    A model that draws random numbers has to draw them in the order of the tasks.
    """
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in learner.model.modules())
    on_cpu = next(learner.parameters()).device.type == "cpu"
    return convolves and on_cpu and not learner.draws_noise


def _replicas(learner: Learner, count: int) -> list[Learner]:
    """Return copies of the learner that share its tensors; none if it cannot be copied."""
    shared = {id(t): t for t in chain(learner.parameters(), learner.buffers())}
    try:
        return [copy.deepcopy(learner, dict(shared)) for _ in range(count)]
    except (TypeError, RuntimeError):
        return []
