"""Tensors inside dicts, lists and tuples: what states and prepared values are made of."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
    return _filled(value, iter(tensors))


def _filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: _filled(part, tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_filled(part, tensors) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
