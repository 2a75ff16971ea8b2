"""Kronecker factors whose spectral norm is one whatever is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metamirror.kronecker import Shape
from metamirror.kronecker_layers import merged_factors


def spectral_normalised(factor: Tensor) -> Tensor:
    """A stack of matrices, each divided by its largest singular value."""
    size: Tensor = torch.linalg.matrix_norm(factor, ord=2, keepdim=True)
    return factor / size.clamp_min(torch.finfo(factor.dtype).tiny)


def distinct_singular_values(count: int, outputs: int, inputs: int) -> Tensor:
    """Random matrices with singular values from 0.8 to 1: where they tie, the norm has no slope."""
    rank = min(outputs, inputs)
    left: Tensor = torch.linalg.qr(torch.randn(count, outputs, rank))[0]
    right: Tensor = torch.linalg.qr(torch.randn(count, inputs, rank))[0]
    return left * torch.linspace(0.8, 1, rank) @ right.mT


class UnitFactors(nn.Module):
    """Kronecker factors of spectral norm one. A mode of size one could only be turned: it has none.

    Args:
        count: how many tensors of this shape are stacked.
        outputs: shape of one output tensor.
        inputs: shape of one input tensor.
    """

    identity: Tensor

    def __init__(self, count: int, outputs: Shape, inputs: Shape):
        super().__init__()
        self.register_buffer("identity", torch.ones(count, 1, 1), persistent=False)
        self.matrices = nn.ParameterList(
            distinct_singular_values(count, m, n)
            for m, n in zip(outputs, inputs, strict=True)
            if n > 1
        )

    def product(self) -> list[Tensor]:
        """The normalised factors in the order of their use, merged where that is cheaper."""
        if not len(self.matrices):
            return [self.identity]
        return merged_factors([spectral_normalised(f) for f in self.matrices])[::-1]
