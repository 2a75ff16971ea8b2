"""Small networks and tasks in float64. Smooth ones, where finite differences judge a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.core.tasks import Params

WAYS = 3


class SmoothConv(nn.Module):
    """Two convolutions with batch normalisation, tanh and average pooling."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first_conv = nn.Conv2d(1, width, 3, padding=1)
        self.first_norm = mm.models.BatchNorm(width)
        self.second_conv = nn.Conv2d(width, width, 3, padding=1)
        self.second_norm = mm.models.BatchNorm(width)
        self.head = nn.Linear(width * 4, WAYS)
        self.warp_points = ["first_norm", "second_norm"]

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.avg_pool2d(torch.tanh(self.first_norm(self.first_conv(x))), 2)
        x = nn.functional.avg_pool2d(torch.tanh(self.second_norm(self.second_conv(x))), 2)
        return self.head(x.flatten(1))


def smooth_conv() -> nn.Module:
    torch.manual_seed(0)
    return SmoothConv().double()


def smooth_mlp() -> nn.Module:
    torch.manual_seed(0)
    return mm.models.MLP(6, WAYS, hidden=(16, 16), activation="tanh").double()


def conv4() -> nn.Module:
    torch.manual_seed(0)
    return mm.models.Conv4(ways=WAYS, channels=1, image_size=16, width=8).double()


def image_tasks(size: int = 8, count: int = 2, shots: int = 2, queries: int = 2) -> mm.Task:
    return _labelled((1, size, size), count, shots, queries)


def point_tasks(count: int = 2, shots: int = 2, queries: int = 3) -> mm.Task:
    return _labelled((6,), count, shots, queries)


def _labelled(shape: tuple[int, ...], count: int, shots: int, queries: int) -> mm.Task:
    random = torch.Generator().manual_seed(1)

    def batch(per_class: int) -> mm.Batch:
        x = torch.randn(count, WAYS * per_class, *shape, generator=random, dtype=torch.float64)
        y = torch.arange(WAYS).repeat(per_class).expand(count, -1).contiguous()
        return mm.Batch(x, y)

    return mm.Task(batch(shots), batch(queries))


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
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(size * torch.randn(p.shape, generator=random, dtype=torch.float64).to(p))
    return learner


def trained(learner: mm.Learner) -> Params:
    return {name: p for name, p in learner.named_parameters() if p.requires_grad}


def meta_gradient(learner: mm.Learner, tasks: mm.Task) -> Params:
    parameters = trained(learner)
    loss = learner.meta_loss(tasks, seeds=list(range(tasks.support.x.shape[0])))
    grads = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return dict(zip(parameters, grads, strict=True))


def relative_difference(a: Params, b: Params) -> float:
    difference = sum(float((a[name] - b[name]).square().sum()) for name in a) ** 0.5
    return difference / sum(float(b[name].square().sum()) for name in a) ** 0.5
