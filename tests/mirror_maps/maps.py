"""Maps far from their start, in float64, and what the tests measure on them."""

from __future__ import annotations

import torch
from torch import Tensor

from metamirror.core.tasks import Params
from metamirror.mirror_maps import (
    BlockIAF,
    Diagonal,
    Elementwise,
    GradientNet,
    Identity,
    KroneckerMetric,
    MirrorMap,
)

SHAPES = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (3, 2, 2, 2), "b.bias": (3,)}


def point(seed: int = 0, size: float = 1.0, shapes=SHAPES) -> Params:
    random = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(shape, generator=random, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def randomised(g: MirrorMap, size: float, seed: int = 0) -> MirrorMap:
    random = torch.Generator().manual_seed(seed)
    g.double()
    with torch.no_grad():
        for p in g.parameters():
            p.add_(size * torch.randn(p.shape, generator=random, dtype=torch.float64))
    return g


def factors(seed: int = 0):
    random = torch.Generator().manual_seed(seed)

    def one(n: int) -> Tensor:
        return torch.eye(n, dtype=torch.float64) + 0.3 * torch.randn(
            n, n, generator=random, dtype=torch.float64
        )

    modes = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (3, 2, 4), "b.bias": (3,)}
    return {name: [one(n) for n in shape] for name, shape in modes.items()}


def rates(seed: int = 0) -> Params:
    random = torch.Generator().manual_seed(seed)
    return {
        name: 0.1 + 2 * torch.rand(shape, generator=random, dtype=torch.float64)
        for name, shape in SHAPES.items()
    }


GRADIENT_MAPS = {
    "elementwise": lambda: Elementwise(point()),
    "gradnet": lambda: GradientNet(point()),
    "gradnet, uncoupled, two terms": lambda: GradientNet(point(), coupled=False, terms=2),
    "gradnet, Kronecker metric": lambda: GradientNet(point(), metric="kronecker"),
}

QUADRATIC_MAPS = {
    "identity": Identity,
    "diagonal": lambda: Diagonal(rates()),
    "Kronecker": lambda: KroneckerMetric(SHAPES, factors()),
}

FLOWS = {
    "blockIAF": lambda: BlockIAF(SHAPES),
    "blockIAF by tensor, logistic": lambda: BlockIAF(SHAPES, blocks="tensor", scale="logistic"),
    "blockIAF by index": lambda: BlockIAF(SHAPES, blocks="index"),
    "blockIAF, exponential": lambda: BlockIAF(SHAPES, scale="exponential"),
}
