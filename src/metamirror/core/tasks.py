"""Tasks and their batches: the plain values that everything else passes around."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metamirror.core.trees import Tree, as_tensors, form, leaves, mapped

Params = dict[str, Tensor]
"""Parameters by name: what `torch.func.functional_call` takes."""

Loss = Callable[[Any, Any], Tensor]
"""(model output, targets) -> scalar, a mean over examples."""


class Batch(NamedTuple):
    """Inputs and targets of one data set. A stack of tasks has one more leading axis on both.

    Either may be a tensor, or a tuple, dict or dataclass of tensors. The model is called with a
    tuple as its arguments, with a dict as its keyword arguments, and with anything else as it is.

    >>> import torch
    >>> Batch(torch.zeros(5, 1), torch.zeros(5, 1)).x.shape
    torch.Size([5, 1])
    """

    x: Tree
    y: Tree

    @property
    def examples(self) -> int:
        """How many examples it holds, or tasks where it is a stack."""
        return len(leaves(self.y)[0])


class Task(NamedTuple):
    """A support set to adapt on and a query set to evaluate on; tensors may be stacks of tasks."""

    support: Batch
    query: Batch


Tasks = Task | Sequence[Task]
"""A stack of tasks, or a list of single ones, whose ways, shots and lengths may differ."""


def as_batch(batch: Any, like: Tensor, name: str) -> Any:
    """Return a pair (x, y) as a `Batch` of tensors, and anything else as it is."""
    if type(batch) not in (Batch, tuple, list) or len(batch) != 2:
        return batch
    x, y = batch
    return Batch(as_tensors(x, like, f"{name}.x"), as_tensors(y, like, f"{name}.y"))


def split_tasks(tasks: Tasks) -> list[Task]:
    """Return the tasks of a stack or a list, one by one."""
    if not isinstance(tasks, Task):
        return list(tasks)
    count = tasks.support.examples
    return [mapped(lambda tensor, i=i: tensor[i], tasks) for i in range(count)]


def stack_tasks(tasks: Sequence[Task]) -> Task:
    """Return single tasks as one stack; refuse those that differ in shape or type."""
    for number, task in enumerate(tasks):
        if (found := forms(task)) != (first := forms(tasks[0])):
            name = next(name for name in first if first[name] != found[name])
            raise ValueError(
                f"{name} is {first[name]} in task 0 and {found[name]} in task {number}, which do "
                f"not make a stack"
            )
    stacked: Task = mapped(lambda *tensors: torch.stack(tensors), *tasks)
    return stacked


def forms(task: Task) -> dict[str, str]:
    """Return the type and shape of each tensor of a task, in words.

    >>> batch = Batch(torch.zeros(5, 1), torch.zeros(5).long())
    >>> forms(Task(batch, batch))["support.y"]
    'int64 (5,)'
    """
    return {
        f"{part}.{axis}": form(tree)
        for part, batch in zip(("support", "query"), task, strict=True)
        for axis, tree in zip("xy", batch, strict=True)
    }


def tensor_like(value: Tensor, like: Tensor) -> Tensor:
    """Return value on the device and in the floating type of `like`."""
    return value.to(device=like.device, dtype=like.dtype)


def precise(tensor: Tensor) -> Tensor:
    """Return the tensor in double precision, or single on Apple's GPUs, which have no double."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
