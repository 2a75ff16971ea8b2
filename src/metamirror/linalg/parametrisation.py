"""How learned geometries store their parameters, so that one learning rate serves them all.

Adam moves every entry of a parameter by about the learning rate in a step, whatever it means. The
constants here say how far what is computed from an entry moves with it.
"""

import torch
from torch import Tensor

SPEED = 10.0
"""How far the logarithm of a scale moves for each unit of its stored parameter.

A rate of MetaSGD that starts at 0.1 changes by ten times the learning rate, relative to itself.
"""

MIXING_SPEED = 32.0
"""What an n x n matrix of a metric or a mixing is multiplied by, divided by n.

A product with the matrix sums n terms whose changes the gradient aligns; at n = 32 every entry
moves as those of MetaCurvature do.
"""


LOG_RANGE = 3.0
"""The usual range of a scale, exp(-3) to exp(3): a factor of twenty on either side of 1."""


def bounded_scale(a: Tensor, log_range: float = LOG_RANGE, speed: float = SPEED) -> Tensor:
    """Return a scale that is 1 at zero and stays between exp(-log_range) and exp(log_range).

    >>> bounded_scale(torch.tensor([-100.0, 0.0, 100.0]), 3.0)
    tensor([ 0.0498,  1.0000, 20.0855])
    """
    if log_range == 0:
        return torch.ones_like(a)
    return torch.exp(log_range * torch.tanh(speed / log_range * a))
