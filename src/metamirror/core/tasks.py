"""Tasks and their batches: the plain values that everything else passes around."""

from collections.abc import Callable
from typing import NamedTuple

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


def split_tasks(tasks: Task) -> list[Task]:
    """Return the tasks of a stack, one by one."""
    each = zip(*(tensor for batch in tasks for tensor in batch), strict=True)
    return [Task(Batch(sx, sy), Batch(qx, qy)) for sx, sy, qx, qy in each]


def tensor_like(value: Tensor, like: Tensor) -> Tensor:
    """Return value on the device and in the floating type of `like`."""
    return value.to(device=like.device, dtype=like.dtype)
