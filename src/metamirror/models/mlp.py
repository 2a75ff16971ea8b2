"""A multilayer perceptron, for regression and for flat features."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.models.conv4 import check_sizes

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "softplus": F.softplus,
}


class Dense(nn.Module):
    """A linear layer and its activation."""

    def __init__(self, inputs: int, outputs: int, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))


class MLP(nn.Module):
    """Linear layers with an activation between them; inputs are flattened.

    Args:
        inputs: features of one example.
        outputs: ways, or the dimension of a regression target.
        hidden: width of each hidden layer; 40-40 is MAML's for the sinusoid.
        activation: "relu", "tanh" or "softplus".

    >>> MLP(1, 1)(torch.zeros(7, 1)).shape
    torch.Size([7, 1])
    """

    def __init__(
        self,
        inputs: int = 1,
        outputs: int = 1,
        hidden: Sequence[int] = (40, 40),
        activation: str = "relu",
    ):
        super().__init__()
        check_sizes(inputs=inputs, outputs=outputs, hidden=min(hidden, default=1))
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; choose from {sorted(ACTIVATIONS)}")
        sizes = {"inputs": inputs, "outputs": outputs, "hidden": list(hidden)}
        self.config = {"name": "mlp", **sizes, "activation": activation}
        self.inputs = inputs
        widths = [inputs, *hidden]
        self.blocks = nn.Sequential(
            *(Dense(n, m, ACTIVATIONS[activation]) for n, m in pairwise(widths))
        )
        self.head = nn.Linear(widths[-1], outputs)
        self.warp_points = [f"blocks.{i}" for i in range(len(hidden))]

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x.shape[1] != self.inputs:
            raise ValueError(
                f"an example has {x.shape[1]} values; this model takes {self.inputs} inputs"
            )
        output: Tensor = self.head(self.blocks(x.to(self.head.weight.dtype)))
        return output
