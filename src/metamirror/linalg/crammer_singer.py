r"""The dual of the multi-class support vector machine of Crammer and Singer (2001), differentiable.

With H the Gram matrix of the examples times C, and Y their labels as rows of an identity matrix,

$$\min_a \; \tfrac12 \sum_m a_m^\top H a_m - \sum_m Y_m^\top a_m
  \quad \text{with} \quad a \le Y, \quad \sum_m a_{im} = 0,$$

and the weights of class m are $w_m = C \sum_i a_{im} x_i$. A primal-dual interior point method of
Mehrotra's kind solves it. Each Newton step eliminates all but one variable an example, so that it
costs one inverse of the size of the support set for each class, not one of their product.

The solution is differentiated through its optimality conditions: one more Newton step, from the
solution taken as a constant, changes no value and has the derivative of the implicit function.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from metamirror.core.tasks import precise

ITERATIONS = 30
"""Newton steps: a fixed number, since tasks side by side under vmap cannot stop one by one."""
RIDGE = 1e-8
"""What is added to H's diagonal in Newton's matrix, relative to its mean: with more examples than
features H is singular, and the solution a no longer unique; the weights are. The conditions that a
step solves have H itself: a ridge there would cost a large problem its margins."""
LAST, SMALLEST = 1e-12, 1e-14
"""The product of a bound's slack and its multiplier at which the method ends: the first relative
to a's size, the second by far above what rounding takes from a slack."""
TO_THE_BOUND = 0.995


class Point(NamedTuple):
    """A point of the interior: a < Y, the multipliers of its bounds, and those of its sums."""

    a: Tensor
    bound: Tensor
    total: Tensor


def crammer_singer(gram: Tensor, targets: Tensor, cost: float) -> Tensor:
    """Return the dual coefficients (examples, classes): the weights are their transpose times x.

    Args:
        gram: inner products of the examples (examples, examples).
        targets: one row for each example: 1 at its class, 0 elsewhere.
        cost: C, the weight of the hinge losses against half the squared weights.

    >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
    >>> alpha = crammer_singer(x @ x.T, torch.eye(2), cost=1.0)
    >>> (alpha.T @ x.double()).round(decimals=4)  # the margin is w_0 x - w_1 x = 1 at both
    tensor([[ 0.2500,  0.0000],
            [-0.2500,  0.0000]], dtype=torch.float64)
    """
    h, y = cost * precise(gram), precise(targets)
    classes = y.shape[1]
    with torch.no_grad():
        # Where no bound is reached, a is as small as H is large.
        size = 1 / h.detach().diagonal().mean().clamp_min(1)
        a = 0.5 * size * (y - 1 / classes)
        end = Point(a, torch.ones_like(a), torch.zeros_like(a[:, 0]))
        for _ in range(ITERATIONS):
            end = _predicted_and_corrected(h.detach(), y, end, (LAST * size).clamp_min(SMALLEST))
    return cost * (end.a + _newton(h, y, end, torch.zeros_like(y)).a)


def _predicted_and_corrected(h: Tensor, y: Tensor, point: Point, last: Tensor) -> Point:
    """Return the point after one iteration of Mehrotra's method."""
    slack = y - point.a
    products = point.bound * slack
    guess = _newton(h, y, point, products)
    length = _length(slack, point, guess)
    ahead = (point.bound + length * guess.bound) * (slack - length * guess.a)
    centring = (ahead.mean() / products.mean()) ** 3 * products.mean()
    residual = products - guess.bound * guess.a - torch.maximum(centring, last)
    step = _newton(h, y, point, residual)
    length = _length(slack, point, step)
    return Point(*(old + length * change for old, change in zip(point, step, strict=True)))


def _newton(h: Tensor, y: Tensor, point: Point, complementarity: Tensor) -> Point:
    """Return the step that solves the linearised optimality conditions."""
    a, bound, total = point
    slack = y - a
    stationarity = h @ a - y + bound + total.unsqueeze(1)
    # One system for each class: (H + diag(bound / slack)) da + dtotal = right.
    ridge = RIDGE * h.diagonal().mean()
    inverses = _inverse(h + torch.diag_embed((bound / slack).mT + ridge))
    right = (complementarity / slack - stationarity).mT.unsqueeze(2)
    alone = (inverses @ right).squeeze(2)
    both = _inverse(inverses.sum(0)) @ (alone.sum(0) + a.sum(1)).unsqueeze(1)
    da = (alone - (inverses @ both).squeeze(2)).mT
    return Point(da, (bound * da - complementarity) / slack, both.squeeze(1))


def _inverse(matrices: Tensor) -> Tensor:
    """Return inverses of positive definite matrices, whose diagonals may differ by many orders."""
    scale = matrices.diagonal(dim1=-2, dim2=-1).rsqrt()
    both = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    inverses: Tensor = both * torch.linalg.inv(both * matrices)
    return inverses


def _length(slack: Tensor, point: Point, step: Point) -> Tensor:
    """Return how far one can go along a step before a slack or a multiplier reaches zero."""
    rooms = torch.stack([slack, point.bound]), torch.stack([step.a, -step.bound])
    ratios = torch.where(rooms[1] > 0, rooms[0] / rooms[1].clamp_min(1e-300), torch.inf)
    return (TO_THE_BOUND * ratios.min()).clamp_max(1.0)
