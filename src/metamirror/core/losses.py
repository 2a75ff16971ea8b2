"""The default losses: cross-entropy for labels, mean squared error for real targets."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metamirror.core import import_path
from metamirror.core.tasks import Loss
from metamirror.core.trees import Tree

IGNORED = -100
"""The label that counts nowhere, as in torch."""


def loss_for(targets: Tree) -> Loss:
    """Return cross-entropy for integer targets, mean squared error for floats."""
    if not isinstance(targets, Tensor) or targets.is_complex():
        kind = str(targets.dtype) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(
            f"the targets are a {kind}, for which there is no usual loss: give one, "
            f"loss=(output, targets) -> scalar"
        )
    return mean_squared_error if targets.is_floating_point() else cross_entropy


def scalar(value: Any, name: str = "loss") -> Tensor:
    """Return what a loss gave; refuse what is not one number in a tensor.

    >>> import torch
    >>> scalar(torch.tensor(0.5))
    tensor(0.5000)
    """
    if not isinstance(value, Tensor):
        raise ValueError(
            f"the {name} gave a {type(value).__name__}; it must be a tensor with its graph: leave "
            f"out item() and float()"
        )
    if value.dim():
        raise ValueError(
            f"the {name} has shape {tuple(value.shape)}; it must be a scalar: a mean over examples"
        )
    return value


def one_tensor(output: Any) -> Tensor:
    """Return the output of a model that gives a single tensor; refuse any other."""
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the model gave a {type(output).__name__}, for which there is no usual loss: give "
            f"one, loss=(output, targets) -> scalar"
        )
    return output


def cross_entropy(output: Any, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (examples, ways), or (examples, ways, ..) each."""
    output = one_tensor(output)
    if output.dim() < 2 or target.shape != output.shape[:1] + output.shape[2:]:
        raise ValueError(
            f"cross-entropy takes logits (examples, ways) and labels (examples,), or one label for "
            f"each place behind the ways; the model gave {tuple(output.shape)} for labels "
            f"{tuple(target.shape)}"
        )
    labels = target.long()
    if not torch._C._functorch.get_interpreter_stack():
        return F.cross_entropy(output, labels, ignore_index=IGNORED)
    # The same in operations for which torch.func has rules: it takes torch's own apart in Python.
    counts = labels != IGNORED
    chosen = torch.where(counts, labels, 0).unsqueeze(1)
    found: Tensor = output.log_softmax(1).gather(1, chosen).squeeze(1)
    return -torch.where(counts, found, 0).sum() / counts.sum()


def mean_squared_error(output: Any, target: Tensor) -> Tensor:
    """Return the mean squared error; shapes must agree, since broadcasting hides mistakes."""
    output = one_tensor(output)
    if output.shape != target.shape:
        raise ValueError(
            f"the model gave {tuple(output.shape)} for targets {tuple(target.shape)}; "
            f"mean squared error needs equal shapes (a trailing axis of 1 counts)"
        )
    return F.mse_loss(output, target)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mean_squared_error}
"""The losses by the names that `metamirror train --loss` takes."""


def make(loss: Any, what: str = "loss") -> Loss | None:
    """Return a loss from its name, an import path, or a function (output, targets) -> scalar."""
    if isinstance(loss, str):
        if loss in LOSSES:
            return LOSSES[loss]
        path = import_path.split_path(loss)
        found = None if path is None else import_path.find(loss, what)
        if not callable(found):
            raise ValueError(
                f"{what} is {loss!r}; choose from {', '.join(LOSSES)}, or name your own function, "
                f"package.module:function"
            )
        return import_path.Named(loss, found)
    if not (loss is None or callable(loss)):
        raise ValueError(f"{what} is {loss!r}; give a function (output, targets) -> scalar")
    own: Loss | None = loss
    return own


def name_of(loss: Loss | None) -> str | None:
    """Return how a file names a loss; "custom" for one that it cannot."""
    if loss is None:
        return None
    if isinstance(loss, import_path.Named):
        return loss.spec
    return next((name for name, known in LOSSES.items() if known is loss), "custom")
