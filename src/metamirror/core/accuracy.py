"""The share of labels that a model predicts correctly."""

from typing import Any

from torch import Tensor

from metamirror.core.checks import are_labels
from metamirror.core.losses import IGNORED
from metamirror.core.trees import Tree


def accuracy(output: Any, y: Tree) -> Tensor | None:
    """Return the share of labels at which the largest logit stands; None if these are no logits.

    Logits are (examples, ways), or (examples, ways, ..) with a label for each place behind the
    ways. Labels that are ignored do not count, and a logit that is not a number is no answer.

    >>> import torch
    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor(0.5000)
    """
    if not (are_labels(y) and isinstance(output, Tensor) and output.dim() >= 2):
        return None
    if y.shape != output.shape[:1] + output.shape[2:]:
        return None
    counts = y != IGNORED
    right = (output.argmax(1) == y) & output.isfinite().all(1) & counts
    # Without branches: vmap knows no values.
    share: Tensor = right.sum().to(output.dtype) / counts.sum()
    return share
