"""Predictions for the user's own examples, each by a model that was fitted without it."""

from collections.abc import Callable

import torch
from torch import Tensor

from metamirror.core.tasks import Batch
from metamirror.estimators.fitting import Adapt

MOST_FOLDS = 5

Fit = Callable[[Batch], Callable[[Tensor], Tensor]]
"""Examples to a model, which gives logits for other ones."""


def enough(y: Tensor) -> bool:
    """Return whether every class has an example to hold out and one to learn from."""
    return int(torch.bincount(y).min()) > 1


def held_out_logits(support: Batch, fit: Fit) -> Tensor:
    """Return the logits (examples, classes) of each example, by a model of the other folds.

    The models have fewer examples than there are: the logits are, if anything, worse than those of
    a model that is fitted to all. Needs two or more examples of each class.
    """
    sizes = torch.bincount(support.y)
    count = min(int(sizes.max()), MOST_FOLDS)
    fold = folds(support.y, count)
    logits = torch.empty(len(support.y), len(sizes), dtype=torch.float64)
    for i in range(count):
        out = fold == i
        model = fit(Batch(support.x[~out], support.y[~out]))
        logits[out.cpu()] = model(support.x[out])[:, : len(sizes)].double().cpu()
    return logits


def folds(y: Tensor, count: int) -> Tensor:
    """Return the fold of each example: those of a class take turns, in their order.

    No fold has the whole of a class, unless the class has one example or there is one fold.

    >>> folds(torch.tensor([0, 1, 0, 1, 1]), 2)
    tensor([0, 0, 1, 1, 0])
    """
    before = (y[:, None] == y).tril(-1).sum(1)
    return before % count


def adapting(run: Adapt) -> Fit:
    """Return an adaptation as a fit, of which the adapted model alone matters."""
    return lambda support: run(support)[0]
