r"""The smallest provable map: every number on its own, through a monotone mixture of tanh.

$$\phi_i = e^{a_i}\Big[z_i
        + \sum_{k \le R} w_{ck}\,\tau_{ck} \tanh\frac{z_i - t_{ck}}{\tau_{ck}}\Big]$$

with (w, t, tau) shared by an output channel c. Since $|w_{ck}| \le \rho / R$, the bracket's slope
lies in $[1 - \rho, 1 + \rho]$ whatever is learned.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds, check_point
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, ShapeGroups
from metamirror.linalg.parametrisation import SPEED, bounded_scale
from metamirror.mirror_maps.base import ContractionMap, log_cosh, spread

# A tanh may become this many times, in logarithms, narrower or wider than the start's spread.
LOG_WIDTH_RANGE = math.log(100)


class Elementwise(ContractionMap):
    """A monotone mixture of tanh per output channel, a scale per number.

    Args:
        start: the parameters at the start: knots go to their quantiles, widths to their spread.
        terms: R, the number of tanh in a mixture.
        rho: how far a slope of the mixture may be from 1, below 1.
        log_range: |a| stays below it; 3 allows rates from a twentieth to twenty.

    >>> g = Elementwise({"w": torch.randn(4, 3)})
    >>> z = {"w": torch.randn(4, 3)}
    >>> torch.equal(g(z)["w"], z["w"]), [round(b, 2) for b in g.bounds()]
    (True, [0.0, 38.16])
    """

    def __init__(self, start: Params, *, terms: int = 4, rho: float = 0.9, log_range: float = 3.0):
        super().__init__(rho, log_range)
        if terms < 1:
            raise ValueError(f"terms is {terms}; a mixture has at least one")
        self.terms = terms
        channels = {name: channel_modes(tuple(t.shape)) for name, t in start.items()}
        self.groups = ShapeGroups({n: tuple(t.shape) for n, t in start.items()}, channels)
        self.scale, self.weight, self.knot, self.width = (nn.ParameterList() for _ in range(4))
        quantiles = torch.linspace(0, 1, terms + 2, dtype=torch.float64)[1:-1]
        like = next(iter(start.values()))
        for i, (modes, names) in enumerate(self.groups.members.items()):
            self.scale.append(like.new_zeros(len(names), *modes))
            widths = torch.tensor([spread(start[name]) for name in names])
            knots = torch.stack([_quantiles(start[name], quantiles) for name in names])
            shape = (len(names), modes[0], terms)
            self.weight.append(like.new_zeros(shape))
            self.knot.append(knots[:, None].expand(shape).to(like).clone())
            self.width.append(like.new_zeros(shape))
            self.register_buffer(f"spread_{i}", widths.to(like).view(-1, 1, 1))

    def prepare(self) -> dict[str, Any]:
        largest = self.rho / self.terms
        widths = [
            getattr(self, f"spread_{i}") * torch.exp(LOG_WIDTH_RANGE * torch.tanh(w))
            for i, w in enumerate(self.width)
        ]
        return {
            "rate": [bounded_scale(a, self.log_range) for a in self.scale],
            "weight": [largest * torch.tanh(SPEED * v).unsqueeze(-2) for v in self.weight],
            "width": [width.unsqueeze(-2) for width in widths],
        }

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        p = prepared or self.prepare()
        x = self.groups.stack(z)
        rows = zip(p["rate"], x, self._offsets(x, p), strict=True)
        return self.groups.unstack([rate * (x_i + n) for rate, x_i, n in rows])

    def _arguments(self, x: list[Tensor], p: Mapping[str, Any]) -> list[Tensor]:
        """Return (z_i - t_ck) / tau_ck, group by group, the terms last."""
        return [
            (x_i.unsqueeze(-1) - knot.unsqueeze(-2)) / width
            for x_i, knot, width in zip(x, self.knot, p["width"], strict=True)
        ]

    def _offsets(self, x: list[Tensor], p: Mapping[str, Any]) -> list[Tensor]:
        return [
            (weight * width * torch.tanh(a)).sum(-1)
            for weight, width, a in zip(p["weight"], p["width"], self._arguments(x, p), strict=True)
        ]

    def inverse(self, phi: Params) -> Params:
        """Iterate to a fixed point, which contracts at least by rho each time."""
        check_point(phi, self.groups.shapes)
        p = self.prepare()
        targets = [x / r for x, r in zip(self.groups.stack(phi), p["rate"], strict=True)]
        return self.groups.unstack(self._solve(targets, lambda x: self._offsets(x, p)))

    def _current_bounds(self) -> Bounds:
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
        x = self.groups.stack(z)
        terms = []
        for i, a in enumerate(self._arguments(x, p)):
            mixture = (p["weight"][i] * p["width"][i].square() * log_cosh(a)).sum(-1)
            terms.append((p["rate"][i] * (x[i].square() / 2 + mixture)).sum())
        return torch.stack(terms).sum()


def channel_modes(shape: Shape) -> Shape:
    """Return (channels, size): a weight's output unit is a channel, a vector is one channel."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _quantiles(tensor: Tensor, levels: Tensor) -> Tensor:
    """Return quantiles of the start, or knots around its value where it has no spread."""
    if tensor.device.type == "meta":
        return levels
    values = tensor.detach().double().flatten().cpu()
    if values.numel() < 2 or float(values.std()) == 0:
        return values.mean() + 2 * levels - 1
    return torch.quantile(values, levels)
