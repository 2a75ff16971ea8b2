r"""Calibrated probabilities: one temperature, fitted on examples that were held out.

$p = \mathrm{softmax}(\mathrm{logits} / T)$ with the $T$ that makes the held-out labels likeliest
(Guo et al., 2017). It changes no prediction.
"""

import math

import torch
from torch import Tensor

HOTTEST = 20.0
COLDEST = 1e-4  # rows that share a large mean give logits that hardly differ


def likeliest_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T for which softmax(logits / T) gives the labels the highest likelihood.

    A few examples are often all right, for which no T would be low enough. So each of n labels
    counts as (n + 1) / (n + 2) certain, the rest going to the other classes (Platt, 1999).

    The likelihood is concave in 1/T, so its slope has one zero, which bisection finds.

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
        """Return the slope of the loss in 1/T: what is expected minus what was seen."""
        expected = (logits * math.exp(-log_t)).softmax(1)
        return float(((expected - target) * logits).sum(1).mean())

    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) < 0 else (middle, high)
    return math.exp((low + high) / 2)
