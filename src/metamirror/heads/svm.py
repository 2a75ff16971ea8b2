r"""The head of MetaOptNet: a support vector machine of several classes, solved for each task.

$$\min_{W} \; \tfrac12 \|W\|^2 + C \sum_i \max_m \left(1 - \delta_{m y_i}
  + w_m^\top x_i - w_{y_i}^\top x_i\right)$$

(Crammer, Singer 2001), without a bias, C = 0.1, in its dual, and the logits are $s \cdot Wx$ with a
learned s (Lee, Maji, Ravichandran, Soatto 2019). `linalg.crammer_singer` solves it to convergence
and differentiates it through its optimality conditions.

Differences from the released code: it learns s itself, from 1, and not its logarithm; it trains
with smoothed labels, which is a loss for `make_learner(loss=...)`, and not part of the head.
"""

import torch
from torch import Tensor, nn

from metamirror.core.tasks import precise
from metamirror.heads.computed import ComputedHead, indicators
from metamirror.linalg.crammer_singer import crammer_singer
from metamirror.linalg.parametrisation import bounded_scale

COST = 0.1
"""C, as in the released code."""
LOG_RANGE = 12.0
"""s stays within a factor exp(12) of 1."""


class SupportVectors(ComputedHead):
    """A Crammer-Singer support vector machine with a learned scale of the logits."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def weight_and_bias(self, features: Tensor, y: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        x = precise(features)
        dual = crammer_singer(x @ x.mT, indicators(y, outputs, x, "svm"), COST)
        weight = bounded_scale(precise(self.log_scale), LOG_RANGE) * (dual.mT @ x)
        return weight, torch.zeros_like(weight[:, 0])
