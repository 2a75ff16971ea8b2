"""A linear layer on embeddings, with an optional learned adapter before it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.linalg.one_operation import one_operation
from metamirror.models.conv4 import check_sizes
from metamirror.models.kernels.row_direction import RowDirection

UNIT = 32
"""Numbers of a row for each unit of its squared length."""


class Linear(nn.Module):
    """A linear layer on rows of numbers, such as the features of a frozen network.

    Each number loses a learned centre and is multiplied by a learned weight, 0 and 1 at first; then
    rows are brought to the length sqrt(inputs / 32), so that only their direction counts. The
    penalty at which the ridge head starts is then that of 1 beside rows of length 1. The adapter is
    a residual layer, f + B relu(A f), which starts as the identity.

    Args:
        inputs: numbers of one example.
        outputs: ways, or the dimension of a regression target.
        adapter: hidden units of the adapter; 0 for none.
        normalise: bring rows to one length.

    >>> Linear(640, 5)(torch.randn(7, 640)).shape
    torch.Size([7, 5])
    """

    def __init__(self, inputs: int = 1, outputs: int = 1, adapter: int = 0, normalise: bool = True):
        super().__init__()
        self.length = (inputs / UNIT) ** 0.5
        check_sizes(inputs=inputs, outputs=outputs, adapter=adapter + 1)
        sizes = {"inputs": inputs, "outputs": outputs, "adapter": adapter}
        self.config = {"name": "linear", **sizes, "normalise": normalise}
        self.inputs, self.normalise = inputs, normalise
        self.centre = nn.Parameter(torch.zeros(inputs))
        self.weights = nn.Parameter(torch.ones(inputs))
        self.down = nn.Linear(inputs, adapter) if adapter else None
        self.up = nn.Linear(adapter, inputs) if adapter else None
        if self.up is not None:
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)
        self.head = nn.Linear(inputs, outputs)
        self.warp_points = ["head"]  # the one layer that a task adapts

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x.shape[1] != self.inputs:
            raise ValueError(
                f"an example has {x.shape[1]} values; this model takes {self.inputs} inputs"
            )
        x = x.to(self.head.weight.dtype)
        trained = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if trained and self.normalise and self.down is None:
            rows = RowDirection(self.length, constant=not x.requires_grad)
            (x,) = one_operation(rows, [x], {"centre": self.centre, "weights": self.weights})
        else:
            x = (x - self.centre) * self.weights
            if self.down is not None and self.up is not None:
                x = x + self.up(self.down(x).relu())
            if self.normalise:
                x = self.length * F.normalize(x)
        output: Tensor = self.head(x)
        return output
