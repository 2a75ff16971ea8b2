"""Kronecker factors whose spectral norm is one whatever is learned."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from metamirror.linalg.kronecker import Shape
from metamirror.linalg.kronecker_layers import merged_factors


def spectral_normalised(factor: Tensor) -> Tensor:
    """Return a stack of matrices, each divided by its largest singular value."""
    if torch._C._are_functorch_transforms_active():
        size: Tensor = torch.linalg.matrix_norm(factor, ord=2, keepdim=True)
    else:
        size = SpectralNorm.apply(factor)  # type: ignore[no-untyped-call]
    return factor / size.clamp_min(_tiny(factor))


class SpectralNorm(Function):
    r"""The largest singular value of each matrix, without a singular value decomposition.

    With u and v its singular vectors, $\sigma = u^\top F v$ and $\partial\sigma = u v^\top$. They
    come from the smaller of F F' and F'F, which is far quicker than from F and as exact for the
    largest one.
    """

    @staticmethod
    def forward(ctx: Any, factor: Tensor) -> Tensor:
        # Squares must not overflow.
        unit = factor / factor.abs().amax((-2, -1), keepdim=True).clamp_min(_tiny(factor))
        wide = factor.shape[-1] > factor.shape[-2]
        gram = unit @ unit.mT if wide else unit.mT @ unit
        one = torch.linalg.eigh(gram)[1][..., -1:]
        other = (unit.mT if wide else unit) @ one
        size = torch.linalg.vector_norm(other, dim=-2, keepdim=True)
        other = other / size.clamp_min(_tiny(factor))
        outer = one @ other.mT if wide else other @ one.mT
        ctx.save_for_backward(factor, outer)
        found: Tensor = (factor * outer).sum((-2, -1), keepdim=True)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        factor, outer = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return grad * outer
        # To be differentiated again, where u and v are no constants.
        size = torch.linalg.matrix_norm(factor, ord=2, keepdim=True)
        return torch.autograd.grad(size, factor, grad, create_graph=True)[0]


def _tiny(like: Tensor) -> float:
    return float(torch.finfo(like.dtype).tiny)


def distinct_singular_values(count: int, outputs: int, inputs: int) -> Tensor:
    """Draw matrices with singular values from 0.8 to 1: at ties the norm has no slope."""
    rank = min(outputs, inputs)
    left: Tensor = torch.linalg.qr(torch.randn(count, outputs, rank))[0]
    right: Tensor = torch.linalg.qr(torch.randn(count, inputs, rank))[0]
    return left * torch.linspace(0.8, 1, rank) @ right.mT


def times_inputs(count: int, outputs: int, inputs: int) -> Tensor:
    """Draw such matrices times their number of inputs.

    Only their direction matters. An optimiser that moves every entry alike then turns them alike at
    every width; see `KroneckerLinear.matrices`.
    """
    return distinct_singular_values(count, outputs, inputs) * inputs


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
        self.inputs = tuple(inputs)
        self.register_buffer("identity", torch.ones(count, 1, 1), persistent=False)
        self.matrices = nn.ParameterList(
            times_inputs(count, m, n) for m, n in zip(outputs, inputs, strict=True) if n > 1
        )

    def forward(self) -> list[Tensor]:
        """Return the normalised factors, mode by mode."""
        matrices = iter(self.matrices)
        return [
            spectral_normalised(next(matrices)) if n > 1 else self.identity for n in self.inputs
        ]

    def merged(self) -> list[Tensor]:
        """Return the normalised factors in the order of their use, merged where that is cheaper."""
        if not len(self.matrices):
            return [self.identity]
        return merged_factors([spectral_normalised(f) for f in self.matrices])[::-1]
