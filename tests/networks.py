"""Small networks and tasks in float64. Smooth ones, where finite differences judge a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.testing.differences import move
from metamirror.testing.networks import WAYS, smooth_conv, smooth_mlp, tasks_of


def conv4() -> nn.Module:
    torch.manual_seed(0)
    return mm.models.Conv4(ways=WAYS, channels=1, image_size=16, width=8).double()


def image_tasks(size: int = 8, count: int = 2, shots: int = 2, queries: int = 2) -> mm.Task:
    return tasks_of((1, size, size), count, shots, queries)


def point_tasks(count: int = 2, shots: int = 2, queries: int = 3) -> mm.Task:
    return tasks_of((6,), count, shots, queries)


class Awkward(nn.Module):
    """Underscores, nesting, a scalar, a raw parameter, a buffer."""

    def __init__(self):
        super().__init__()
        self._first_layer_ = nn.Linear(6, 6)
        self.deep = nn.ModuleDict({"in_ner": nn.ModuleList([nn.Linear(6, 6), nn.Tanh()])})
        self.scale_ = nn.Parameter(torch.tensor(1.5))
        self.shift_by = nn.Parameter(torch.linspace(-1, 1, 6))
        self.register_buffer("centre", torch.full((6,), 0.1))
        self.out_put = nn.Linear(6, 3)
        self.warp_points = ["_first_layer_", "deep.in_ner.0"]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self._first_layer_(x - self.centre))
        for layer in self.deep["in_ner"]:
            x = layer(x)
        return self.out_put(self.scale_ * x + self.shift_by)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return Awkward().double()


def tied() -> nn.Module:
    model = plain()
    model.deep["in_ner"][0].weight = model._first_layer_.weight
    return model


def frozen() -> nn.Module:
    model = plain()
    model._first_layer_.requires_grad_(False)
    model.scale_.requires_grad_(False)
    return model


def with_torch_norm(norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(0)
    layers = {
        "conv": nn.Conv2d(1, 4, 3),
        "its_norm": norm(4),
        "act": nn.Tanh(),
        "flat": nn.Flatten(),
        "head": nn.Linear(144, 3),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.double()


NETWORKS = {"mlp": (smooth_mlp, point_tasks), "conv": (smooth_conv, image_tasks)}


def shaken(learner: mm.Learner, size: float = 0.1, seed: int = 2) -> mm.Learner:
    """The learner with every meta-parameter moved, so that nothing holds by being at the start."""
    move(list(learner.parameters()), size, seed)
    return learner
