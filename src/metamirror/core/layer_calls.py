"""What a layer is given, and what it makes of it, while a model runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def recorded_calls(model: nn.Module, layer: str) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect input and output of every call of a layer inside the block.

    A hook, so that it works for any module, under `torch.func.vmap` and at second order.

    >>> import torch
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> with recorded_calls(net, "1") as calls:
    ...     output = net(torch.zeros(2, 2, 2))
    >>> [tuple(t.shape) for t in calls[0]]
    [(2, 4), (2, 3)]
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls.append((inputs[0], output))

    handle = model.get_submodule(layer).register_forward_hook(note)
    try:
        yield calls
    finally:
        handle.remove()
