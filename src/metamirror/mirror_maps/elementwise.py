r"""The smallest provable map: every number on its own, through a monotone mixture of tanh.

$$\phi_i = b_i + e^{a_i}\Big[z_i
        + \sum_{k \le R} w_{ck}\,\tau_{ck} \tanh\frac{z_i - t_{ck}}{\tau_{ck}}\Big]$$

with (w, t, tau) shared by an output channel c. Since $|w_{ck}| \le \rho / R$, the bracket's slope
lies in $[1 - \rho, 1 + \rho]$ whatever is learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, ShapeGroups
from metamirror.mirror_maps.base import (
    Bounds,
    MirrorMap,
    check_point,
    inner,
    log_cosh,
    solve_contraction,
)

# exp of it, squared, is a float32 still.
MOST_LOG_RANGE = 40.0
# A tanh may become this many times, in logarithms, narrower or wider than the start's spread.
LOG_WIDTH_RANGE = math.log(100)


def check_contraction(rho: float, log_range: float) -> None:
    """Refuse bounds that cannot hold."""
    if not 0 <= rho < 1:
        raise ValueError(f"rho is {rho}; it must lie in [0, 1), or the map could fail to increase")
    if not 0 <= log_range <= MOST_LOG_RANGE:
        raise ValueError(f"log_range is {log_range}; it must lie between 0 and {MOST_LOG_RANGE}")


def spread(tensor: Tensor) -> float:
    """The standard deviation of a tensor's entries; 1 where they are all equal."""
    if tensor.device.type == "meta" or tensor.numel() < 2:
        return 1.0
    deviation = float(tensor.double().std())
    return deviation if deviation > 0 else 1.0


class Elementwise(MirrorMap):
    """A monotone mixture of tanh per output channel, an affine map per number.

    Args:
        start: the parameters at the start: knots go to their quantiles, widths to their spread.
        terms: R, the number of tanh in a mixture.
        rho: how far a slope of the mixture may be from 1, below 1.
        log_range: |a| stays below it; ln 10 allows rates from a tenth to ten.

    >>> g = Elementwise({"w": torch.randn(4, 3)})
    >>> z = {"w": torch.randn(4, 3)}
    >>> torch.equal(g(z)["w"], z["w"]), [round(b, 2) for b in g.bounds()]
    (True, [0.01, 19.0])
    """

    is_gradient = True

    def __init__(
        self, start: Params, *, terms: int = 4, rho: float = 0.9, log_range: float = math.log(10)
    ):
        super().__init__()
        check_contraction(rho, log_range)
        if terms < 1:
            raise ValueError(f"terms is {terms}; a mixture has at least one")
        self.rho, self.log_range, self.terms = rho, log_range, terms
        channels = {name: channel_modes(tuple(t.shape)) for name, t in start.items()}
        self.groups = ShapeGroups({n: tuple(t.shape) for n, t in start.items()}, channels)
        self.scale, self.shift = nn.ParameterList(), nn.ParameterList()
        self.weight, self.knot, self.width = (nn.ParameterList() for _ in range(3))
        quantiles = torch.linspace(0, 1, terms + 2, dtype=torch.float64)[1:-1]
        for i, ((channels_, size), names) in enumerate(self.groups.members.items()):
            like = next(iter(start.values()))
            for full in (self.scale, self.shift):
                full.append(like.new_zeros(len(names), channels_, size))
            widths = torch.tensor([spread(start[name]) for name in names])
            knots = torch.stack([_quantiles(start[name], quantiles) for name in names])
            shape = (len(names), channels_, terms)
            self.weight.append(like.new_zeros(shape))
            self.knot.append(knots[:, None].expand(shape).to(like).clone())
            self.width.append(like.new_zeros(shape))
            self.register_buffer(f"spread_{i}", widths.to(like).view(-1, 1, 1))

    def prepare(self) -> dict[str, Any]:
        largest = self.rho / self.terms
        return {
            "rate": [torch.exp(self.log_range * torch.tanh(a)) for a in self.scale],
            "weight": [largest * torch.tanh(v).unsqueeze(-2) for v in self.weight],
            "width": [
                (
                    getattr(self, f"spread_{i}") * torch.exp(LOG_WIDTH_RANGE * torch.tanh(w))
                ).unsqueeze(-2)
                for i, w in enumerate(self.width)
            ],
        }

    def _width(self, i: int) -> Tensor:
        spread: Tensor = getattr(self, f"spread_{i}")
        return spread * torch.exp(LOG_WIDTH_RANGE * torch.tanh(self.width[i]))

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        p = prepared or self.prepare()
        outputs = [
            self.shift[i] + p["rate"][i] * (x + self._offset(i, x, p))
            for i, x in enumerate(self.groups.stack(z))
        ]
        return self.groups.unstack(outputs)

    def _offset(self, i: int, x: Tensor, p: Mapping[str, Any]) -> Tensor:
        scaled = (x.unsqueeze(-1) - self.knot[i].unsqueeze(-2)) / p["width"][i]
        mixture: Tensor = (p["weight"][i] * p["width"][i] * torch.tanh(scaled)).sum(-1)
        return mixture

    def constants(self) -> list[nn.Parameter]:
        return list(self.shift)

    def inverse(self, phi: Params) -> Params:
        """By a fixed point that contracts at least by rho each time."""
        check_point(phi, self.groups.shapes)
        p = self.prepare()
        outputs = [
            solve_contraction(
                (x - self.shift[i]) / p["rate"][i], partial(self._offset, i, p=p), self.rho
            )
            for i, x in enumerate(self.groups.stack(phi))
        ]
        return self.groups.unstack(outputs)

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds:
        if not current:
            reach = math.exp(self.log_range)
            return ((1 - self.rho) / reach, (1 + self.rho) * reach)
        self.check_parameters()
        p = self.prepare()
        lows, highs = [], []
        for rate, weight in zip(p["rate"], p["weight"], strict=True):
            # Each tanh has a slope in [0, 1]: negative weights can only lower, positive only raise.
            down, up = weight.clamp_max(0).sum(-1), weight.clamp_min(0).sum(-1)
            lows.append(float((rate * (1 + down)).min()))
            highs.append(float((rate * (1 + up)).max()))
        return (min(lows), max(highs))

    def potential(self, z: Params) -> Tensor:
        p = self.prepare()
        total = inner(self.groups.unstack(list(self.shift)), z)
        for i, x in enumerate(self.groups.stack(z)):
            scaled = (x.unsqueeze(-1) - self.knot[i].unsqueeze(-2)) / p["width"][i]
            mixture = (p["weight"][i] * p["width"][i].square() * log_cosh(scaled)).sum(-1)
            total = total + (p["rate"][i] * (x.square() / 2 + mixture)).sum()
        return total


def channel_modes(shape: Shape) -> Shape:
    """(channels, size): an output unit of a weight is a channel, a vector is one channel."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _quantiles(tensor: Tensor, levels: Tensor) -> Tensor:
    """Where a start has no spread, knots stand around its value instead."""
    if tensor.device.type == "meta":
        return levels
    values = tensor.detach().double().flatten().cpu()
    if values.numel() < 2 or float(values.std()) == 0:
        return values.mean() + 2 * levels - 1
    return torch.quantile(values, levels)
