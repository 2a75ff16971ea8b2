"""Maps far from their start, in float64, and what the tests measure on them."""

from __future__ import annotations

import math

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

# Small enough for dense Jacobians.
SHAPES = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (3, 2, 2, 2), "b.bias": (3,)}

# Kernels of equal shape, modes of size one, vectors of several lengths, a scalar.
CONV_SHAPES = {
    "conv0.weight": (16, 1, 3, 3),
    "conv0.bias": (16,),
    "conv1.weight": (16, 16, 3, 3),
    "conv1.bias": (16,),
    "conv2.weight": (16, 16, 3, 3),
    "conv2.bias": (16,),
    "temperature": (),
    "head.weight": (5, 40),
    "head.bias": (5,),
}
MLP_SHAPES = {
    "a.weight": (40, 1),
    "a.bias": (40,),
    "b.weight": (40, 40),
    "c.weight": (1, 40),
    "c.bias": (1,),
}
TABLE = {"small": SHAPES, "conv": CONV_SHAPES, "mlp": MLP_SHAPES}


def size_of(shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


PARTITIONS = {
    "layers": lambda shapes: "layer",
    "tensors": lambda shapes: "tensor",
    "one block": lambda shapes: [list(shapes)],
    "alternating tensors": lambda shapes: [list(shapes)[::2], list(shapes)[1::2]],
    # Blocks of indices, which cut across the tensors: as many as a test has time for.
    "interleaved indices": lambda shapes: [list(range(i, size_of(shapes), 12)) for i in range(12)],
    "indices in reverse": lambda shapes: [
        list(range(i, min(i + 400, size_of(shapes))))[::-1]
        for i in reversed(range(0, size_of(shapes), 400))
    ],
}


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


RANGE = math.log(10)
GRADIENT_MAPS = {
    "elementwise": lambda: Elementwise(point()),
    # Of a narrower range than by default: a test then sees its own digits, not the condition.
    "gradnet": lambda: GradientNet(point(), log_range=RANGE),
    "gradnet, uncoupled, two terms": lambda: GradientNet(
        point(), coupled=False, terms=2, log_range=RANGE
    ),
    "gradnet, diagonal metric": lambda: GradientNet(point(), metric="diagonal", log_range=RANGE),
}

QUADRATIC_MAPS = {
    "identity": Identity,
    "diagonal": lambda: Diagonal(rates()),
    "Kronecker": lambda: KroneckerMetric(SHAPES, factors()),
}

FLOWS = {
    "blockIAF": lambda: BlockIAF(SHAPES),
    "blockIAF by tensor, logistic": lambda: BlockIAF(SHAPES, blocks="tensor", scale="logistic"),
    "blockIAF, standard": lambda: BlockIAF(SHAPES, parametrisation="standard", scale="bounded"),
    "blockIAF, reversed": lambda: BlockIAF(SHAPES, reverse=True),
    "blockIAF by index": lambda: BlockIAF(SHAPES, blocks="index"),
    "blockIAF, exponential": lambda: BlockIAF(SHAPES, scale="exponential"),
}


def scales_of(g: BlockIAF, z: Params) -> Params:
    """sigma(alpha) of every piece at z."""
    blocks = g.autoregression(g.partition.split(z))
    return {name: scale for block in blocks for name, (scale, _) in block.items()}
