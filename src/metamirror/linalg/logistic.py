"""Logistic regression with several classes, by Newton's method."""

import torch
from torch import Tensor
from torch.nn import functional as F

from metamirror.core.implicit import Vector, conjugate_gradients, dot

MOST_STEPS, CG_STEPS = 50, 25
CLOSE = 1e-7
"""The largest entry of the gradient at what counts as the minimum."""


def logistic_regression(x: Tensor, y: Tensor, penalty: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Return the weight (classes, features) and the bias of a linear classifier.

    They minimise, in double precision,

    $$\sum_i -\log \mathrm{softmax}(W x_i + b)_{y_i} + \tfrac{1}{2}\,\mathrm{penalty}\,\|W\|^2.$$

    With penalty 1 this is scikit-learn's `LogisticRegression` as it comes. Labels are 0, 1, ...

    >>> x, y = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    >>> weight, bias = logistic_regression(x, y)
    >>> (x.double() @ weight.T + bias).argmax(1)
    tensor([0, 0, 1, 1])
    """
    # The best weight is a sum of the rows. Along their principal axes it has few numbers, and the
    # Hessian is nearly diagonal.
    left, lengths, axes = torch.linalg.svd(x.double(), full_matrices=False)
    rows = left * lengths
    classes = int(y.max()) + 1
    wanted = F.one_hot(y, classes).double()
    # The leading axis is that of the systems that conjugate gradients solve: there is one.
    at: Vector = [rows.new_zeros(1, classes, len(lengths)), rows.new_zeros(1, classes)]

    def logits(vector: Vector) -> Tensor:
        (weight,), (bias,) = vector
        found: Tensor = rows @ weight.T + bias
        return found

    def loss(point: Vector) -> Tensor:
        errors = F.cross_entropy(logits(point), y, reduction="sum")
        return errors + penalty / 2 * point[0].square().sum()

    def pulled_back(slopes: Tensor, vector: Vector) -> Vector:
        """Return what slopes of the logits are for weight and bias, and the penalty's own part."""
        return [slopes.T @ rows + penalty * vector[0], slopes.sum(0, keepdim=True)]

    for _ in range(MOST_STEPS):
        shares = logits(at).softmax(1)
        gradient = pulled_back(shares - wanted, at)
        if max(float(part.abs().max()) for part in gradient) < CLOSE:
            break

        def hessian(vector: Vector, shares: Tensor = shares) -> Vector:
            change = logits(vector)
            mean = (shares * change).sum(1, keepdim=True)
            return pulled_back(shares * (change - mean), vector)

        spread = shares * (1 - shares)
        scale = [(spread.T @ rows.square() + penalty)[None], spread.sum(0, keepdim=True)]
        step = conjugate_gradients(hessian, gradient, CG_STEPS, scale)
        here, slope, length = loss(at), float(dot(gradient, step)), 1.0
        while loss(moved := [a - length * s for a, s in zip(at, step, strict=True)]) > (
            here - 1e-4 * length * slope
        ):
            length /= 2
            if length < 1e-9:  # what is left is rounding
                return at[0][0] @ axes, at[1][0]
        at = moved
    return at[0][0] @ axes, at[1][0]
