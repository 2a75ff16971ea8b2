"""Tasks and their batches: the plain values that everything else passes around."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameters by name: what `torch.func.functional_call` takes."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, targets) -> scalar, a mean over examples."""


class Batch(NamedTuple):
    """Inputs and targets of one data set. A stack of tasks has one more leading axis on both.

    >>> import torch
    >>> Batch(torch.zeros(5, 1), torch.zeros(5, 1)).x.shape
    torch.Size([5, 1])
    """

    x: Tensor
    y: Tensor


class Task(NamedTuple):
    """A support set to adapt on and a query set to evaluate on; tensors may be stacks of tasks."""

    support: Batch
    query: Batch


Tasks = Task | Sequence[Task]
"""A stack of tasks, or a list of single ones, whose ways, shots and lengths may differ."""


def as_batch(batch: Any) -> Any:
    """Return a plain pair (x, y) as a `Batch`, and anything else as it is."""
    plain = type(batch) in (tuple, list) and len(batch) == 2
    return Batch(*batch) if plain else batch


def split_tasks(tasks: Tasks) -> list[Task]:
    """Return the tasks of a stack or a list, one by one."""
    if not isinstance(tasks, Task):
        return list(tasks)
    each = zip(*(tensor for batch in tasks for tensor in batch), strict=True)
    return [Task(Batch(sx, sy), Batch(qx, qy)) for sx, sy, qx, qy in each]


def stack_tasks(tasks: Sequence[Task]) -> Task:
    """Return single tasks as one stack; refuse those that differ in shape or type."""
    for number, task in enumerate(tasks):
        if (found := forms(task)) != (first := forms(tasks[0])):
            name = next(name for name in first if first[name] != found[name])
            raise ValueError(
                f"{name} is {first[name]} in task 0 and {found[name]} in task {number}, which do "
                f"not make a stack"
            )
    parts = zip(*tasks, strict=True)
    return Task(*(Batch(*map(torch.stack, zip(*part, strict=True))) for part in parts))


def forms(task: Task) -> dict[str, str]:
    """Return the type and shape of each tensor of a task, in words.

    >>> batch = Batch(torch.zeros(5, 1), torch.zeros(5).long())
    >>> forms(Task(batch, batch))["support.y"]
    'int64 (5,)'
    """
    return {
        f"{part}.{axis}": f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"
        for part, batch in zip(("support", "query"), task, strict=True)
        for axis, t in zip("xy", batch, strict=True)
    }


def tensor_like(value: Tensor, like: Tensor) -> Tensor:
    """Return value on the device and in the floating type of `like`."""
    return value.to(device=like.device, dtype=like.dtype)
