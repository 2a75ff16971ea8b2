"""Small smooth networks in float64, where finite differences are exact enough, and their tasks."""

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Batch, Task
from metamirror.models import MLP, BatchNorm

WAYS = 3


class SmoothConv(nn.Module):
    """Two convolutions with batch normalisation, tanh and average pooling."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first_conv = nn.Conv2d(1, width, 3, padding=1)
        self.first_norm = BatchNorm(width)
        self.second_conv = nn.Conv2d(width, width, 3, padding=1)
        self.second_norm = BatchNorm(width)
        self.head = nn.Linear(width * 4, WAYS)
        self.warp_points = ["first_norm", "second_norm"]

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.avg_pool2d(torch.tanh(self.first_norm(self.first_conv(x))), 2)
        x = nn.functional.avg_pool2d(torch.tanh(self.second_norm(self.second_conv(x))), 2)
        output: Tensor = self.head(x.flatten(1))
        return output


def smooth_conv() -> nn.Module:
    """Return the convolutional network for images (1, 8, 8), the same each time."""
    torch.manual_seed(0)
    return SmoothConv().double()


def smooth_mlp() -> nn.Module:
    """Return the fully connected network for vectors of six, the same each time."""
    torch.manual_seed(0)
    return MLP(6, WAYS, hidden=(16, 16), activation="tanh").double()


def tasks_of(shape: tuple[int, ...], count: int = 2, shots: int = 2, queries: int = 3) -> Task:
    """Return a stack of tasks of three classes, whose examples are noise."""
    random = torch.Generator().manual_seed(1)

    def batch(per_class: int) -> Batch:
        x = torch.randn(count, WAYS * per_class, *shape, generator=random, dtype=torch.float64)
        return Batch(x, torch.arange(WAYS).repeat(per_class).expand(count, -1).contiguous())

    return Task(batch(shots), batch(queries))
