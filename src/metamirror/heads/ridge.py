r"""The head of R2D2: ridge regression onto the labels, in closed form.

With X the features, beside a column of ones for the bias, and Y the labels as rows of an identity
matrix,

$$W = X^\top (XX^\top + \lambda I)^{-1} Y = (X^\top X + \lambda I)^{-1} X^\top Y,$$

of which the smaller system is solved, and the logits are $s \cdot XW$ (Bertinetto, Henriques, Torr,
Vedaldi 2019). $\lambda > 0$ and $s > 0$ are learned, as logarithms. For real targets Y are the
targets, and s = 1.

Differences from the released code: it divides X and Y by the square root of the number of
examples, which is another unit of $\lambda$; it keeps $\lambda = 50$ by default; its s starts at
1e-4, for an outer learning rate five times as large; and it adds a learned constant to all logits,
on which the softmax does not depend.
"""

import torch
from torch import Tensor, nn

from metamirror.core.tasks import precise
from metamirror.heads.computed import ComputedHead, indicators
from metamirror.linalg.parametrisation import bounded_scale

PER_UNIT = 32
"""lambda starts at 1 for each so many features: at 50, as released, for the 1,600 of conv4."""
SCALE = 10.0
"""Where s starts: predictions of labels lie between 0 and 1, and logits need a wider range."""
LOG_RANGE = 12.0
"""lambda and s stay within a factor exp(12) of where they start."""


class Ridge(ComputedHead):
    """Ridge regression with a learned penalty and a learned scale of the logits."""

    labels_only = False

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.log_ridge = nn.Parameter(torch.zeros(()))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def weight_and_bias(self, features: Tensor, y: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        x = precise(features)
        ridge = self.features / PER_UNIT * bounded_scale(precise(self.log_ridge), LOG_RANGE)
        if y.is_floating_point() and self.biased:
            # The intercept is not penalised: targets may lie far from zero.
            targets = y.reshape(len(y), -1).to(x.dtype)
            middle, mean = x.mean(0, keepdim=True), targets.mean(0, keepdim=True)
            weight = solved(x - middle, targets - mean, ridge)
            return weight.mT, (mean - middle @ weight)[0]
        if self.biased:
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        if y.is_floating_point():
            weight = solved(x, y.reshape(len(y), -1).to(x.dtype), ridge)
        else:
            scale = SCALE * bounded_scale(precise(self.log_scale), LOG_RANGE)
            weight = scale * solved(x, indicators(y, outputs, x, "ridge"), ridge)
        return weight[: self.features].mT, weight[-1]


def solved(x: Tensor, y: Tensor, ridge: Tensor) -> Tensor:
    """Return the W that minimises |XW - Y|^2 + ridge |W|^2."""
    wide = x.shape[0] <= x.shape[1]
    gram = x @ x.mT if wide else x.mT @ x
    gram = gram + ridge * torch.eye(len(gram), dtype=x.dtype, device=x.device)
    found: Tensor = (
        x.mT @ torch.linalg.solve(gram, y) if wide else torch.linalg.solve(gram, x.mT @ y)
    )
    return found
