"""The plain values that everything else passes around, and the checks on what users hand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Params = dict[str, Tensor]
"""Parameters by name: what `torch.func.functional_call` takes."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, targets) -> scalar, a mean over examples."""


class Batch(NamedTuple):
    """Inputs and targets of one data set. A stack of tasks has one more leading axis on both.

    >>> Batch(torch.zeros(5, 1), torch.zeros(5, 1)).x.shape
    torch.Size([5, 1])
    """

    x: Tensor
    y: Tensor


class Task(NamedTuple):
    """A support set to adapt on and a query set to be judged by; tensors may be stacks of tasks."""

    support: Batch
    query: Batch


def loss_for(targets: Tensor) -> Loss:
    """Cross-entropy for integer targets, mean squared error for floats."""
    return mean_squared_error if targets.is_floating_point() else cross_entropy


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits (examples, ways)."""
    if output.dim() != 2 or target.shape != output.shape[:1]:
        raise ValueError(
            f"cross-entropy takes logits (examples, ways) and labels (examples,); "
            f"the model gave {tuple(output.shape)} for labels {tuple(target.shape)}"
        )
    return F.cross_entropy(output, target.long())


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error; shapes must agree, since broadcasting hides mistakes."""
    if output.shape != target.shape:
        raise ValueError(
            f"the model gave {tuple(output.shape)} for targets {tuple(target.shape)}; "
            f"mean squared error needs equal shapes (a trailing axis of 1 counts)"
        )
    return F.mse_loss(output, target)


def check_batch(batch: Batch, name: str, *, stacked: bool) -> None:
    """Refuse what would otherwise fail deep inside torch, or worse, train on.

    Values are looked at where there are any: not on the `meta` device.
    """
    if not (isinstance(batch, tuple) and len(batch) == 2):
        raise ValueError(f"{name} must be a Batch(x, y), not {type(batch).__name__}")
    x, y = batch
    for label, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name}.{label} must be a torch.Tensor, not {type(tensor).__name__}")
    leading = 2 if stacked else 1
    if x.dim() < leading or y.dim() < leading or x.shape[:leading] != y.shape[:leading]:
        axes = "(tasks, examples, ...)" if stacked else "(examples, ...)"
        raise ValueError(
            f"{name}.x has shape {tuple(x.shape)} and {name}.y {tuple(y.shape)}; "
            f"both must start with the same {axes}"
        )
    if 0 in x.shape[:leading]:
        raise ValueError(
            f"{name} is empty: x has shape {tuple(x.shape)}; at least one example is needed"
        )
    if x.device.type == "meta":
        return
    for label, tensor in (("x", x), ("y", y)):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            where = tuple(torch.nonzero(~torch.isfinite(tensor))[0].tolist())
            raise ValueError(
                f"{name}.{label} holds {float(tensor[where])} at index {where}; "
                f"every value must be finite: remove or repair that example"
            )
    if not y.is_floating_point() and int(y.min()) < 0:
        raise ValueError(f"{name}.y holds the label {int(y.min())}; labels run from 0 to ways-1")


def check_labels(batch: Batch, name: str, ways: int) -> None:
    """Refuse labels for which the model has no output."""
    if batch.y.is_floating_point() or batch.y.device.type == "meta":
        return
    largest = int(batch.y.max())
    if largest >= ways:
        raise ValueError(
            f"{name}.y holds the label {largest}, but the model has {ways} outputs: "
            f"labels run from 0 to {ways - 1}; relabel the task or build the model with more ways"
        )


def check_task(task: Task) -> None:
    """Refuse a stack of tasks whose support and query do not belong together."""
    if not (isinstance(task, tuple) and len(task) == 2):
        raise ValueError(f"expected Task(support, query), not {type(task).__name__}")
    check_batch(task.support, "support", stacked=True)
    check_batch(task.query, "query", stacked=True)
    if task.support.x.shape[0] != task.query.x.shape[0]:
        raise ValueError(
            f"support holds {task.support.x.shape[0]} tasks and query {task.query.x.shape[0]}; "
            f"each task needs both"
        )
    if task.support.x.shape[2:] != task.query.x.shape[2:]:
        raise ValueError(
            f"a support example has shape {tuple(task.support.x.shape[2:])} and a query example "
            f"{tuple(task.query.x.shape[2:])}; they must be equal"
        )
