r"""A Kronecker gradient network: a map that is the gradient of a convex function by construction.

Per tensor, with $u = Sz$,

$$\phi = b + S^\top\Big[u + \sum_k A_k^\top\big(w_k\,\tau \tanh((A_k u + c_k)/\tau)\big)
        + E^\top U^\top\big(\omega\,\tau' \tanh((U e + c')/\tau')\big)\Big],$$

where $A_k$ and $E$ are Kronecker products, $e$ concatenates $E u$ over *all* tensors (the last
term couples layers, in both directions), and $S = \mathrm{diag}(e^{a/2})$ or a Kronecker product.
Every factor is divided by its spectral norm and $\sum|w| + |\omega| \le \rho < 1$, so that the
bracket's Jacobian is symmetric with eigenvalues in $[1-\rho, 1+\rho]$ whatever is learned.

One hidden layer of the monotone gradient networks of Chaudhari, Pranav and Moura (2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import Shape, ShapeGroups
from metamirror.linalg.kronecker_layers import merged_factors
from metamirror.linalg.spectral_norm import (
    UnitFactors,
    distinct_singular_values,
    spectral_normalised,
)
from metamirror.linalg.tensor_stacks import Packing
from metamirror.mirror_maps.base import (
    Bounds,
    MirrorMap,
    check_point,
    inner,
    log_cosh,
    solve_contraction,
)
from metamirror.mirror_maps.bounded_metric import Metric, Scaling
from metamirror.mirror_maps.elementwise import check_contraction, spread
from metamirror.mirror_maps.kernels.gradient_net import NetPass, blank
from metamirror.mirror_maps.kernels.one_operation import one_pass


class HiddenLayer(nn.Module):
    """The terms A_k'(w_k tanh(A_k u + c_k)) of one group of tensors."""

    def __init__(self, count: int, shape: Shape, terms: int):
        super().__init__()
        self.terms = terms
        self.factors = UnitFactors(terms * count, shape, shape)
        self.weight = nn.Parameter(torch.zeros(terms * count, *shape))
        self.offset = nn.Parameter(torch.zeros(terms * count, *shape))

    def bounded_weight(self, largest: float) -> Tensor:
        """The weights w_k, whose magnitude stays below `largest`."""
        return largest * torch.tanh(self.weight)

    def prepare(self, largest: float, width: Tensor) -> dict[str, Any]:
        """A, c and w of A'(w (2 logistic(Au + c) - 1)), the width of the tanh among them."""
        first, *others = self.factors.product()
        weight = self.bounded_weight(largest) * width.square() / 2
        return {
            "factors": [first * (2 / width.view(-1, 1, 1)), *others],
            "offset": (self.offset * (2 / width)).flatten(1),
            "weight": weight.flatten(1),
        }


class Coupling(nn.Module):
    """E'U'(omega tanh(U e + c')): one hidden layer that reads, and writes to, every tensor."""

    def __init__(self, groups: ShapeGroups, units: int):
        super().__init__()
        self.encoded = [
            (len(names), tuple(max(1, n // 8) for n in shape))
            for shape, names in groups.members.items()
        ]
        self.encoders = nn.ModuleList(
            UnitFactors(count, small, shape)
            for shape, (count, small) in zip(groups.members, self.encoded, strict=True)
        )
        self.sizes = [count * math.prod(small) for count, small in self.encoded]
        self.mixing = nn.Parameter(distinct_singular_values(1, units, sum(self.sizes))[0])
        self.weight = nn.Parameter(torch.zeros(units))
        self.offset = nn.Parameter(torch.zeros(units))

    def bounded_weight(self, largest: float) -> Tensor:
        """omega, whose magnitude stays below `largest`."""
        return largest * torch.tanh(self.weight)

    def prepare(self, largest: float, width: Tensor) -> dict[str, Any]:
        """As for a hidden layer, with U in the place of A."""
        return {
            "encoders": [e.product() for e in cast(Iterable[UnitFactors], self.encoders)],
            "mixing": spectral_normalised(self.mixing) * (2 / width),
            "offset": self.offset * (2 / width),
            "weight": self.bounded_weight(largest) * width.square() / 2,
        }


class GradientNet(MirrorMap):
    """phi = grad Psi(z), with known constants m and M.

    Args:
        start: the parameters at the start: shapes, and the scale at which the tanh bend.
        coupled: add the layer that couples all tensors.
        metric: S diagonal (contains MetaSGD with positive rates) or Kronecker (contains positive
            definite MetaCurvature).
        terms: hidden layers of the size of the tensor, side by side.
        units: width of the coupling's hidden layer.
        rho: how far the bracket's slopes may be from 1, below 1.
        coupling: the part of rho that belongs to the coupling; a third of it by default.
        log_range: eigenvalues of S'S stay within exp(-log_range) and exp(log_range).
        modes: modes of single parameters where they differ from the stored shape.

    >>> g = GradientNet({"w": torch.randn(4, 3), "b": torch.randn(4)})
    >>> z = {"w": torch.randn(4, 3), "b": torch.randn(4)}
    >>> torch.equal(g(z)["w"], z["w"]), [round(b, 2) for b in g.bounds()]
    (True, [0.01, 19.0])
    """

    is_gradient = True
    coupling_width: Tensor

    def __init__(
        self,
        start: Params,
        *,
        coupled: bool = True,
        metric: Metric = "diagonal",
        terms: int = 1,
        units: int = 128,
        rho: float = 0.9,
        coupling: float | None = None,
        log_range: float = math.log(10),
        modes: Mapping[str, Shape] | None = None,
    ):
        super().__init__()
        check_contraction(rho, log_range)
        if terms < 1 or units < 1:
            raise ValueError(f"terms is {terms} and units {units}; both must be at least 1")
        if coupling is None:
            coupling = rho / 3
        if coupled and not 0 <= coupling <= rho:
            raise ValueError(
                f"coupling is {coupling}; as a part of rho = {rho} it lies in [0, rho]"
            )
        self.rho, self.log_range, self.terms = rho, log_range, terms
        self.coupling_rho = coupling if coupled else 0.0
        self.groups = ShapeGroups({n: tuple(t.shape) for n, t in start.items()}, modes)
        self.scalings, self.layers, self.shifts = (
            nn.ModuleList(),
            nn.ModuleList(),
            nn.ParameterList(),
        )
        like = next(iter(start.values()))
        for i, (shape, names) in enumerate(self.groups.members.items()):
            count = len(names)
            self.scalings.append(Scaling(count, shape, metric, log_range))
            self.shifts.append(torch.zeros(count, *shape))
            # Vectors have one mode: a hidden layer on it would be dense. Theirs is the coupling.
            self.layers.append(
                HiddenLayer(count, shape, terms) if len(shape) > 1 else nn.Identity()
            )
            # A tanh bends over a distance of its width: the spread of what it acts on.
            widths = torch.tensor([spread(start[name]) for name in names]).repeat(terms)
            self.register_buffer(f"width_{i}", widths.view(-1, *[1] * len(shape)))
        self.coupling = Coupling(self.groups, units) if coupled else None
        self.register_buffer("coupling_width", torch.ones(()))
        self.to(device=like.device, dtype=like.dtype)
        sizes = [[math.prod(shape)] * len(names) for shape, names in self.groups.members.items()]
        stacks = list(self.groups.members.values())
        self.net = NetPass(Packing(self.groups.shapes, stacks, sizes))
        if self.coupling is not None and like.device.type != "meta":
            with torch.no_grad():
                u = self.net.packing.pack([t.reshape(1, -1) for t in start.values()])
                mixed = self.net.mixed(u, self.coupling.prepare(0.0, self.coupling_width), blank(u))
                size = float(mixed.square().mean().sqrt()) / 2
            self.coupling_width.fill_(size if size > 0 else 1.0)

    def prepare(self) -> dict[str, Any]:
        largest = (self.rho - self.coupling_rho) / self.terms
        return {
            "scalings": [
                s.flatten(1) if isinstance(s, Tensor) else merged_factors(s)[::-1]
                for s in (s.prepare() for s in cast(Iterable[Scaling], self.scalings))
            ],
            "shifts": [shift.flatten(1) for shift in self.shifts],
            "layers": [
                layer.prepare(largest, getattr(self, f"width_{i}"))
                if isinstance(layer, HiddenLayer)
                else None
                for i, layer in enumerate(self.layers)
            ],
            "coupling": None
            if self.coupling is None
            else self.coupling.prepare(self.coupling_rho, self.coupling_width),
        }

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        names = list(self.groups.shapes)
        phi = one_pass(self.net, [z[name] for name in names], prepared or self.prepare())
        return dict(zip(names, phi, strict=True))

    def constants(self) -> list[nn.Parameter]:
        return list(self.shifts)

    def inverse(self, phi: Params) -> Params:
        """By a fixed point that contracts at least by rho each time."""
        check_point(phi, self.groups.shapes)
        p = self.prepare()
        scalings = [s.prepare() for s in cast(Iterable[Scaling], self.scalings)]
        targets = [
            Scaling.solve(x - shift, s, transpose=True)
            for x, shift, s in zip(self.groups.stack(phi), self.shifts, scalings, strict=True)
        ]
        shapes, sizes = [t.shape for t in targets], [t.numel() for t in targets]

        def cut(flat: Tensor) -> list[Tensor]:
            return [t.reshape(s) for t, s in zip(flat.split(sizes), shapes, strict=True)]

        def offset(flat: Tensor) -> Tensor:
            u = [x.reshape(len(x), 1, -1) for x in cut(flat)]
            found = self.net.offsets(u, p, blank(u))
            return torch.cat(
                [
                    torch.zeros_like(x).flatten() if n is None else n.flatten()
                    for x, n in zip(u, found, strict=True)
                ]
            )

        u = cut(solve_contraction(torch.cat([t.flatten() for t in targets]), offset, self.rho))
        return self.groups.unstack([Scaling.solve(x, s) for x, s in zip(u, scalings, strict=True)])

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds:
        if not current:
            reach = math.exp(self.log_range)
            return ((1 - self.rho) / reach, (1 + self.rho) * reach)
        self.check_parameters()
        down = up = 0.0
        largest = (self.rho - self.coupling_rho) / self.terms
        for layer in self.layers:
            if isinstance(layer, HiddenLayer):
                # Factors have norm one: the largest weight of each term bounds that term.
                terms = layer.bounded_weight(largest).reshape(self.terms, -1)
                down = min(down, float(terms.amin(1).clamp_max(0).sum()))
                up = max(up, float(terms.amax(1).clamp_min(0).sum()))
        if self.coupling is not None:
            weight = self.coupling.bounded_weight(self.coupling_rho)
            down += min(0.0, float(weight.min()))
            up += max(0.0, float(weight.max()))
        spectra = [s.spectrum() for s in cast(Iterable[Scaling], self.scalings)]
        return ((1 + down) * min(s[0] for s in spectra), (1 + up) * max(s[1] for s in spectra))

    def potential(self, z: Params) -> Tensor:
        p = self.prepare()
        total = inner(self.groups.unstack(list(self.shifts)), z)
        scalings = cast(Iterable[Scaling], self.scalings)
        u = [
            Scaling.apply_to(x, s.prepare()).reshape(len(x), 1, -1)
            for x, s in zip(self.groups.stack(z), scalings, strict=True)
        ]
        trace = blank(u)
        for x, layer, group in zip(u, p["layers"], trace.groups, strict=True):
            total = total + x.square().sum() / 2
            if layer is not None:
                bent = log_cosh(self.net.hidden(x, layer, group) / 2)
                total = total + (2 * layer["weight"].unsqueeze(-1) * bent).sum()
        if (coupling := p["coupling"]) is not None:
            bent = log_cosh(self.net.mixed(u, coupling, trace) / 2)
            total = total + (2 * coupling["weight"].unsqueeze(-1) * bent).sum()
        return total
