"""The quadratic part of a gradient network: S in phi = b + S'[...](Sz), with bounded spectrum."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from metamirror.kronecker import Shape, kronecker_product, squared_spectrum, transposed
from metamirror.mirror_maps.base import Bounds

Metric = Literal["diagonal", "kronecker"]


def cayley(r: Tensor) -> Tensor:
    """The rotation (I + A)^-1 (I - A) of a skew matrix A made from r, with entries below 2.

    Up to signs, which S'S does not see, entries of size 1 reach every rotation; and bounded ones
    keep the equation well conditioned however large r grows.
    """
    skew = 2 * torch.tanh((r - r.mT) / 2)
    eye = torch.eye(r.shape[-1], device=r.device, dtype=r.dtype)
    rotation: Tensor = torch.linalg.solve(eye + skew, eye - skew)
    return rotation


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
            self.log_spectrum = nn.ParameterList(torch.zeros(count, n) for n in shape)
            self.rotation = nn.ParameterList(torch.zeros(count, n, n) for n in shape if n > 1)

    def prepare(self) -> Tensor | list[Tensor]:
        """The diagonal of S, or its factors D_j Q_j with Q_j a rotation."""
        if self.diagonal:
            return torch.exp(self.log_range / 2 * torch.tanh(self.log_scale))
        share = self.log_range / 2 / len(self.log_spectrum)
        rotations = iter(self.rotation)
        factors = []
        for d in self.log_spectrum:
            factor = torch.exp(share * torch.tanh(d)).unsqueeze(-1)
            if d.shape[-1] > 1:
                factor = factor * cayley(next(rotations))
            factors.append(factor)
        return factors

    @staticmethod
    def apply_to(x: Tensor, s: Tensor | list[Tensor], *, transpose: bool = False) -> Tensor:
        """Sx, or S'x."""
        if isinstance(s, Tensor):
            return s * x
        return kronecker_product(x, transposed(s) if transpose else s)

    @staticmethod
    def solve(x: Tensor, s: Tensor | list[Tensor], *, transpose: bool = False) -> Tensor:
        """S^-1 x, or S'^-1 x."""
        if isinstance(s, Tensor):
            return x / s
        inverses = [torch.linalg.inv(f) for f in s]
        return kronecker_product(x, transposed(inverses) if transpose else inverses)

    @torch.no_grad()
    def spectrum(self) -> Bounds:
        """The smallest and largest eigenvalue of S'S now."""
        s = self.prepare()
        if isinstance(s, Tensor):
            return float(s.min()) ** 2, float(s.max()) ** 2
        return squared_spectrum(s)
