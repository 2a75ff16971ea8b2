"""The device of a run, and tasks moved to it."""

from typing import overload

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Task, Tasks
from metamirror.core.trees import mapped


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of that name; auto is CUDA, else Apple's MPS, else the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        other = "mps" if torch.backends.mps.is_available() else "cpu"
        name = "cuda" if torch.cuda.is_available() else other
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}; choose auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", local_rank)
    there = {
        "cpu": True,
        "cuda": (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise ValueError(f"device is {name!r}, which this machine does not have: choose auto")
    return device


@overload
def place(tasks: Task, like: nn.Module) -> Task: ...


@overload
def place(tasks: Tasks, like: nn.Module) -> Tasks: ...


def place(tasks: Tasks, like: nn.Module) -> Tasks:
    """Move tasks to where a module's parameters are, their floating values to their type."""
    if not isinstance(tasks, Task):
        return [place(task, like) for task in tasks]
    first = next(like.parameters())

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)

    moved: Task = mapped(move, tasks)
    return moved
