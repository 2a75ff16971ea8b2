r"""Probabilities one can take at their word: one temperature, from examples that were held out.

$p = \mathrm{softmax}(\mathrm{logits} / T)$ with the $T$ that makes the held-out labels likeliest
(Guo et al., 2017). It changes no prediction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metamirror.core.learner import Learner
from metamirror.core.tasks import Batch
from metamirror.estimators.fitting import Adaptation, adapt

MOST_FOLDS = 5
HOTTEST = 20.0
"""Temperatures lie within this factor of 1."""


def calibrated_temperature(
    learner: Learner, support: Batch, classes: int, how: Adaptation
) -> float:
    """The temperature by cross-validation over the support set.

    Each part is predicted by a model that was adapted to the others, which have fewer examples
    than the whole: the temperature is, if anything, too high.
    """
    counts = torch.bincount(support.y, minlength=classes)
    fewest = int(counts.min())
    if fewest < 2:
        raise ValueError(
            "calibrate needs at least 2 examples of each class, and one class has 1: add an "
            "example, or leave calibrate off"
        )
    part = parts(support.y, min(fewest, MOST_FOLDS))
    logits, labels = [], []
    for held_out in (part == i for i in range(int(part.max()) + 1)):
        rest = Batch(support.x[~held_out], support.y[~held_out])
        adapted = adapt(learner, rest, how).adapted
        logits.append(adapted(support.x[held_out])[:, :classes])
        labels.append(support.y[held_out])
    return likeliest_temperature(torch.cat(logits), torch.cat(labels))


def parts(y: Tensor, folds: int) -> Tensor:
    """Which part each example belongs to: those of a class take turns, as they come.

    >>> parts(torch.tensor([0, 1, 0, 1, 1]), 2)
    tensor([0, 0, 1, 1, 0])
    """
    seen: dict[int, int] = {}
    found = []
    for label in y.tolist():
        found.append(seen.get(label, 0) % folds)
        seen[label] = seen.get(label, 0) + 1
    return torch.tensor(found, device=y.device)


def likeliest_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T for which softmax(logits / T) gives the labels the highest likelihood.

    A few examples are often all right, for which no T would be low enough. So each of n labels
    counts as (n + 1) / (n + 2) certain, the rest going to the other classes (Platt, 1999).

    The likelihood is concave in 1/T, so that its slope has one zero, which is halved towards.

    >>> guesses = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> both_right = torch.tensor([0, 1])
    >>> t = likeliest_temperature(guesses, both_right)
    >>> (guesses / t).softmax(1)
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]])
    """
    logits = logits.double()
    count, classes = logits.shape
    certain = (count + 1) / (count + 2)
    target = torch.full_like(logits, (1 - certain) / (classes - 1))
    target.scatter_(1, labels[:, None], certain)

    def slope(log_t: float) -> float:
        """Of the loss in 1/T: what is expected minus what was seen."""
        expected = (logits * math.exp(-log_t)).softmax(1)
        return float(((expected - target) * logits).sum(1).mean())

    low, high = -math.log(HOTTEST), math.log(HOTTEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) < 0 else (middle, high)
    return math.exp((low + high) / 2)
