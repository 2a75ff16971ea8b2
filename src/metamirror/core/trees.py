"""Tensors inside dicts, lists and tuples: what states and prepared values are made of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in a nested value, in order.

    >>> import torch
    >>> [int(t) for t in tensors_in({"a": torch.tensor(1), "b": [torch.tensor(2), None]})]
    [1, 2]
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


def with_tensors(value: Any, tensors: Iterable[Tensor]) -> Any:
    """Return the nested value with its tensors replaced by others, in the same order."""
    rest = iter(tensors)  # of an iterator it is the iterator itself, which the parts then share
    if isinstance(value, Tensor):
        return next(rest)
    if isinstance(value, Mapping):
        return {key: with_tensors(part, rest) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [with_tensors(part, rest) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def pulled_back(
    results: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    *,
    keep_graph: bool = False,
) -> list[Tensor | None]:
    """Return the gradients by the inputs, from those by results, of which some have none."""
    pairs = zip(results, grads, strict=True)
    reached = [(r, grad) for r, grad in pairs if grad is not None and r.requires_grad]
    if not reached:
        return [None] * len(inputs)
    ends, by_ends = zip(*reached, strict=True)
    return list(
        torch.autograd.grad(
            ends, tuple(inputs), by_ends, retain_graph=keep_graph, allow_unused=True
        )
    )
