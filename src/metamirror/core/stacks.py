"""One function over a stack of tasks, all at once under `torch.func.vmap`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from metamirror.core.inner_level import InnerLevel
from metamirror.core.tasks import Batch, Params, Task, Tasks, split_tasks, stack_tasks
from metamirror.core.trees import leaves, mapped

OneTask = Callable[[Task, Params, int | None], Any]
"""(task, its noise, how many outputs it asks for) -> tensors, for `vmap` to stack."""

MEMORY = 1 << 30
"""Bytes that the tasks which are differentiated at once may take."""
COPIES = 4
"""How many numbers a graph keeps for each one of a task's inputs and of its points, roughly."""


def over_stack(
    inner: InnerLevel,
    function: OneTask,
    tasks: Tasks,
    noise: Sequence[Params],
    steps: int | None = None,
) -> Any:
    """Return what a function gives for each task, stacked.

    The outputs that tasks ask for are counted here, which cannot be done under vmap; `steps` are
    those that the function takes, if not the learner's.
    """
    if not isinstance(tasks, Task):
        try:
            tasks = stack_tasks(tasks)
        except ValueError as error:
            raise ValueError(f"{error}, as torch.func.vmap needs: leave vectorize off") from None
    outputs = inner.asked_outputs(flattened(tasks).support, steps)
    stacked = {name: torch.stack([own[name] for own in noise]) for name in noise[0]}

    def one(task: Task, noise: Params) -> Any:
        return function(task, noise, outputs)

    return torch.func.vmap(one, randomness="different")(tasks, stacked)


def chunks_of(inner: InnerLevel, tasks: Tasks) -> list[Tasks]:
    """Return tasks as few stacks or lists, each of which takes about `MEMORY` at most."""
    count = tasks.support.examples if isinstance(tasks, Task) else len(tasks)
    held = leaves(tasks) if isinstance(tasks, Task) else count * leaves(tasks[0])
    inputs = sum(leaf.numel() * leaf.element_size() for leaf in held) // count
    points = sum(p.numel() * p.element_size() for p in inner.theta().values()) * (inner.steps + 1)
    size = max(1, MEMORY // (COPIES * (inputs + points)))
    if count <= size:
        return [tasks]
    every = split_tasks(tasks)
    return [every[i : i + size] for i in range(0, len(every), size)]


def flattened(tasks: Task) -> Task:
    """Return the targets of a stack of tasks as those of one, with the inputs of the first."""
    firsts = (mapped(lambda tensor: tensor[0], batch.x) for batch in tasks)
    every = (mapped(lambda tensor: tensor.flatten(0, 1), batch.y) for batch in tasks)
    return Task(*map(Batch, firsts, every))
