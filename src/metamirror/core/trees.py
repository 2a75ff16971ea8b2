"""Tensors inside dicts, lists and tuples.

What users pass in (inputs, targets, outputs of models) is walked by torch's own pytree, which
`torch.func` uses as well and which knows dataclasses. States and prepared values go through the
two functions at the end, which take a quarter of its time at every step of the inner loop.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

SEQUENCES = (list, tuple)

Tree = Any
"""A tensor, or tensors inside tuples, dicts and dataclasses."""


def leaves(tree: Tree) -> list[Any]:
    """Return what a tree holds, in order.

    >>> [len(t) for t in leaves({"image": torch.zeros(2), "text": (torch.zeros(3),)})]
    [2, 3]
    """
    return [tree] if isinstance(tree, Tensor) else pytree.tree_leaves(tree)


def mapped(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Return a tree of the same form, of what a function gives for the leaves."""
    if isinstance(trees[0], Tensor):
        return function(*trees)
    return pytree.tree_map(function, *trees)


def as_tensors(value: Any, like: Tensor, name: str) -> Tree:
    """Return a tree of tensors from what users have: arrays and lists of numbers are converted.

    Real numbers get the type of `like`, and what is converted its device; tensors stay as they are,
    but for those made under `torch.inference_mode`, with which nothing can be differentiated.
    `name` is what an error calls the value.
    """
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    numbers = isinstance(value, list) and not any(isinstance(t, Tensor) for t in leaves(value))
    if isinstance(value, np.ndarray | np.generic) or numbers:
        found = torch.as_tensor(_numbers(value, name), device=like.device)
        return found.to(like.dtype) if found.is_floating_point() else found
    if pytree.tree_is_leaf(registered(value)):
        return value
    return pytree.tree_map(
        lambda part: as_tensors(part, like, name), value, is_leaf=lambda part: part is not value
    )


def _numbers(value: Any, name: str) -> NDArray[Any]:
    """Return an array of numbers in a form that torch takes."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name} is a list whose parts differ in length; examples of a task have one shape: "
            f"pad them"
        ) from error
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biufc":
        such = f", such as {array.ravel()[:1].tolist()[0]!r}" if array.size else ""
        raise ValueError(
            f"{name} holds {array.dtype}{such}; give numbers, and for classes those from 0 on"
        )
    wide = {"u": np.int64 if size > 1 else None, "f": np.float64 if size > 8 else None}.get(kind)
    # Torch takes no negative strides, nor the other order of bytes, and warns of what is fixed.
    return np.require(array, wide or array.dtype.newbyteorder("="), ["C", "W"])


def registered(value: Any) -> Any:
    """Return the value; if its class is a dataclass, trees know it from now on."""
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind not in pytree.SUPPORTED_NODES:
        from torch.export import register_dataclass

        register_dataclass(kind)
    return value


def form(tree: Tree) -> str:
    """Return types and shapes in words.

    >>> form((torch.zeros(5, 1), torch.zeros(5).long()))
    'float32 (5, 1), int64 (5,)'
    """
    return ", ".join(
        f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"
        if isinstance(t, Tensor)
        else type(t).__name__
        for t in leaves(tree)
    )


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in a nested value, in order.

    >>> import torch
    >>> [int(t) for t in tensors_in({"a": torch.tensor(1), "b": [torch.tensor(2), None]})]
    [1, 2]
    """
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    # Called for every part at every step: a union or an abstract class would double its time.
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, found)
    elif isinstance(value, SEQUENCES):
        for part in value:
            _collect(part, found)


def with_tensors(value: Any, tensors: Iterable[Tensor]) -> Any:
    """Return the nested value with its tensors replaced by others, in the same order."""
    return _replaced(value, iter(tensors).__next__)


def _replaced(value: Any, take: Callable[[], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return take()
    if isinstance(value, dict):
        return {key: _replaced(part, take) for key, part in value.items()}
    if isinstance(value, SEQUENCES):
        parts = [_replaced(part, take) for part in value]
        if type(value) is list:
            return parts
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
