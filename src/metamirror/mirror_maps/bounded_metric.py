"""The quadratic part of a gradient network: S in phi = S'[...](Sz), with bounded spectrum."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds
from metamirror.linalg.kronecker import Shape, kronecker_product, squared_spectrum, transposed
from metamirror.linalg.parametrisation import MIXING_SPEED, bounded_scale

Metric = Literal["diagonal", "kronecker"]

MOST_KRONECKER = 20.0
LARGEST = 2.0
"""A factor's argument stays below it, in units of the Frobenius norm that reaches every matrix."""


def bounded(a: Tensor, reach: float) -> Tensor:
    """Return a function f of a symmetric matrix whose values lie in [exp(-reach), exp(reach)].

    f(x) = (x^2 + qx/2 + q) / (x^2 - qx/2 + q) is 1 + x + .. at 0, so that every entry is learned
    from the first step on. With sqrt(q) = 4 tanh(reach / 2) its extremes, at x = sqrt(q) and
    -sqrt(q), are exp(reach) and exp(-reach): each symmetric matrix with eigenvalues between them
    is reached, and no other. Beyond them f falls back towards 1. Entries of size 4 suffice; larger
    ones could overflow. So does a Frobenius norm of sqrt(qn): with one far above it, a rounding
    error of the square would be as large as q. f(-x) = 1 / f(x).
    """
    eye = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
    if reach == 0:
        return eye.expand_as(a)
    q = (4 * math.tanh(reach / 2)) ** 2
    a = 4 * torch.tanh(a / 4)
    excess = a.square().sum((-2, -1), keepdim=True) / (LARGEST**2 * q * a.shape[-1])
    a = a * excess.clamp_min(1.0).rsqrt()
    odd = q / 2 * a
    # f = 1 + 2 odd / (even - odd): where the reach is small, all of f's digits are in the second.
    found: Tensor = eye + torch.linalg.solve(a @ a + q * eye - odd, 2 * odd)
    return found


class Scaling(nn.Module):
    """S of one group: a bounded positive diagonal, or a Kronecker product with bounded spectrum."""

    def __init__(self, count: int, shape: Shape, metric: Metric, log_range: float):
        super().__init__()
        if metric not in get_args(Metric):
            raise ValueError(f"metric is {metric!r}; choose from {get_args(Metric)}")
        self.log_range = log_range
        # A vector has a single mode: a dense matrix on it would not be cheap, nor Kronecker.
        self.diagonal = metric == "diagonal" or len(shape) == 1
        if self.diagonal:
            self.log_scale = nn.Parameter(torch.zeros(count, *shape))
        else:
            if log_range > MOST_KRONECKER:
                raise ValueError(
                    f"log_range is {log_range}; with a Kronecker metric it is at most "
                    f"{MOST_KRONECKER}: beyond that float32 would not keep the bounds"
                )
            self.modes = nn.ParameterList(torch.zeros(count, n, n) for n in shape)

    def factors(self) -> Tensor | list[Tensor]:
        """Return the diagonal of S, or its factors."""
        if self.diagonal:
            return bounded_scale(self.log_scale / 2, self.log_range / 2)
        reach = self.log_range / 2 / len(self.modes)
        # Half of it: S stands on both sides.
        speed = MIXING_SPEED / 2
        return [bounded((a + a.mT) * (speed / 2 / a.shape[-1]), reach) for a in self.modes]

    @staticmethod
    def apply_to(x: Tensor, s: Tensor | list[Tensor], *, transpose: bool = False) -> Tensor:
        """Return Sx, or S'x."""
        if isinstance(s, Tensor):
            return s * x
        return kronecker_product(x, transposed(s) if transpose else s)

    @staticmethod
    def solve(x: Tensor, s: Tensor | list[Tensor], *, transpose: bool = False) -> Tensor:
        """Return S^-1 x, or S'^-1 x."""
        if isinstance(s, Tensor):
            return x / s
        inverses = [torch.linalg.inv(f) for f in s]
        return kronecker_product(x, transposed(inverses) if transpose else inverses)

    @torch.no_grad()
    def spectrum(self) -> Bounds:
        """Return the smallest and largest eigenvalue of S'S now."""
        s = self.factors()
        if isinstance(s, Tensor):
            return float(s.min()) ** 2, float(s.max()) ** 2
        return squared_spectrum(s)
