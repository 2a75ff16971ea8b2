r"""Separable powers: $h = \sum_i q_i\,|\phi_i|^p / p$, smoothed where $\phi_i$ is small.

With $r = 1/(p-1)$, one for each tensor, and $\epsilon$ the spread of the tensor at the start,

$$\phi_i = \mathrm{sign}(z_i)\, \frac{\epsilon}{r}
           \Big[\Big(1 + \frac{|z_i|}{q_i\epsilon}\Big)^r - 1\Big], \qquad
  z_i = q_i\,\mathrm{sign}(\phi_i)\,\epsilon
        \Big[\Big(1 + \frac{r|\phi_i|}{\epsilon}\Big)^{1/r} - 1\Big].$$

For numbers far above $\epsilon$ these are the powers of the p-norm. At zero the slope is $1/q_i$,
where that of a pure power is zero or infinite. With r = 1, that is p = 2, $\phi = z / q$ exactly:
MetaSGD with positive rates 1/q.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds, MirrorMap, check_point
from metamirror.core.tasks import Params
from metamirror.linalg.parametrisation import LOG_RANGE, bounded_scale
from metamirror.mirror_maps.base import spread

LOG_POWER_RANGE = math.log(3)
"""r stays between a third and three, and so p between four thirds and four."""


class Power(MirrorMap):
    """A rate 1/q for every number and, on request, a power for every tensor.

    Args:
        start: the parameters at the start, whose spread is the unit of the powers.
        powers: learn the powers; otherwise p = 2, and h is quadratic with a diagonal matrix.

    >>> g = Power({"w": torch.randn(4, 3)}, powers=False)
    >>> g.is_linear, [round(b, 2) for b in g.bounds()]
    (True, [0.05, 20.09])
    """

    is_gradient = True

    def __init__(self, start: Params, *, powers: bool = True):
        super().__init__()
        self.shapes = {name: tuple(t.shape) for name, t in start.items()}
        self.rates = nn.ParameterList(torch.zeros_like(t) for t in start.values())
        like = next(iter(start.values()))
        self.powers = nn.Parameter(like.new_zeros(len(start))) if powers else None
        units = torch.tensor([spread(t) for t in start.values()], dtype=torch.float64)
        self.register_buffer("units", units.to(like))
        self.units: Tensor
        self.is_linear = not powers

    def prepare(self) -> dict[str, Any]:
        found: dict[str, Any] = {"rates": [bounded_scale(a) for a in self.rates], "powers": None}
        if self.powers is not None:
            found["powers"] = bounded_scale(self.powers, LOG_POWER_RANGE)
        return found

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        p = prepared or self.prepare()
        scaled = {name: rate * z[name] for name, rate in zip(self.shapes, p["rates"], strict=True)}
        if p["powers"] is None:
            return scaled
        rows = zip(scaled.items(), p["powers"].unbind(), self.units.unbind(), strict=True)
        return {name: raised(x, r, unit) for (name, x), r, unit in rows}

    def inverse(self, phi: Params) -> Params:
        check_point(phi, self.shapes)
        p = self.prepare()
        if p["powers"] is not None:
            rows = zip(self.shapes, p["powers"].unbind(), self.units.unbind(), strict=True)
            phi = {name: lowered(phi[name], r, unit) for name, r, unit in rows}
        return {name: phi[name] / rate for name, rate in zip(self.shapes, p["rates"], strict=True)}

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds | None:
        """Return bounds for p = 2; other powers have slopes of any size."""
        if self.powers is not None:
            return None
        if not current:
            return (math.exp(-LOG_RANGE), math.exp(LOG_RANGE))
        self.check_parameters()
        rates = self.prepare()["rates"]
        return (min(float(r.min()) for r in rates), max(float(r.max()) for r in rates))

    def potential(self, z: Params) -> Tensor:
        p = self.prepare()
        powers = torch.ones_like(self.units) if p["powers"] is None else p["powers"]
        rows = zip(z.values(), p["rates"], powers.unbind(), self.units.unbind(), strict=True)
        terms = []
        for x, rate, r, unit in rows:
            u = rate * x.abs() / unit
            integral = torch.expm1((r + 1) * torch.log1p(u)) / (r + 1) - u
            terms.append((unit.square() / (r * rate) * integral).sum())
        return torch.stack(terms).sum()


def raised(x: Tensor, r: Tensor, unit: Tensor) -> Tensor:
    """Return sign(x) (unit / r) [(1 + |x| / unit)^r - 1]."""
    # Zero has a sign here: autograd would take the slopes of `sign` and `abs` there for zero.
    sign = torch.where(x < 0, -1, 1).to(x)
    return sign * (unit / r) * torch.expm1(r * torch.log1p(sign * x / unit))


def lowered(phi: Tensor, r: Tensor, unit: Tensor) -> Tensor:
    """Return the inverse of `raised`, which is itself with other numbers."""
    return raised(phi, 1 / r, unit / r)
