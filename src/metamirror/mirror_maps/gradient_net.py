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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from metamirror.kronecker import Shape, ShapeGroups, kronecker_product, transposed
from metamirror.mirror_maps.base import (
    Bounds,
    MirrorMap,
    check_point,
    inner,
    log_cosh,
    solve_contraction,
)
from metamirror.mirror_maps.elementwise import check_contraction, spread
from metamirror.mirror_maps.scaling import Metric, Scaling
from metamirror.mirror_maps.unit_factors import (
    UnitFactors,
    distinct_singular_values,
    spectral_normalised,
)
from metamirror.types import Params


class HiddenLayer(nn.Module):
    """The terms A_k'(w_k tanh(A_k u + c_k)) of one group of tensors."""

    def __init__(self, count: int, shape: Shape, terms: int):
        super().__init__()
        self.terms = terms
        self.factors = UnitFactors(terms * count, shape, shape)
        self.weight = nn.Parameter(torch.zeros(terms * count, *shape))
        self.offset = nn.Parameter(torch.zeros(terms * count, *shape))

    def prepare(self, largest: float) -> dict[str, Any]:
        """Normalised factors, and weights whose magnitude stays below `largest`."""
        return {
            "factors": self.factors.normalised(),
            "weight": largest * torch.tanh(self.weight),
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

    def prepare(self, largest: float) -> dict[str, Any]:
        """As for a hidden layer."""
        return {
            "encoders": [e.normalised() for e in cast(Iterable[UnitFactors], self.encoders)],
            "mixing": spectral_normalised(self.mixing),
            "weight": largest * torch.tanh(self.weight),
        }

    def hidden(self, u: Sequence[Tensor], p: Mapping[str, Any]) -> Tensor:
        """U e."""
        parts = [kronecker_product(x, f).flatten() for x, f in zip(u, p["encoders"], strict=True)]
        mixed: Tensor = p["mixing"] @ torch.cat(parts)
        return mixed

    def backward_through(self, hidden: Tensor, p: Mapping[str, Any]) -> list[Tensor]:
        """E'U' hidden, one tensor per group."""
        parts = (p["mixing"].mT @ hidden).split(self.sizes)
        return [
            kronecker_product(part.reshape(count, *small), transposed(f))
            for part, (count, small), f in zip(parts, self.encoded, p["encoders"], strict=True)
        ]


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
        if self.coupling is not None and like.device.type != "meta":
            with torch.no_grad():
                p = self.coupling.prepare(0.0)
                size = float(
                    self.coupling.hidden(self.groups.stack(start), p).square().mean().sqrt()
                )
            self.coupling_width.fill_(size if size > 0 else 1.0)

    def prepare(self) -> dict[str, Any]:
        largest = (self.rho - self.coupling_rho) / self.terms
        return {
            "scalings": [s.prepare() for s in cast(Iterable[Scaling], self.scalings)],
            "layers": [
                layer.prepare(largest) if isinstance(layer, HiddenLayer) else None
                for layer in self.layers
            ],
            "coupling": None if self.coupling is None else self.coupling.prepare(self.coupling_rho),
        }

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        p = prepared or self.prepare()
        u = [
            Scaling.apply_to(x, s) for x, s in zip(self.groups.stack(z), p["scalings"], strict=True)
        ]
        outputs = [
            shift + Scaling.apply_to(x + n, s, transpose=True)
            for x, n, s, shift in zip(
                u, self._offset(u, p), p["scalings"], self.shifts, strict=True
            )
        ]
        return self.groups.unstack(outputs)

    def _offset(self, u: Sequence[Tensor], p: Mapping[str, Any]) -> list[Tensor]:
        """What the bracket adds to u: a contraction with constant rho."""
        offsets = []
        for i, x in enumerate(u):
            prepared = p["layers"][i]
            if prepared is None:
                offsets.append(torch.zeros_like(x))
                continue
            bent = torch.tanh(self._scaled(i, x, prepared))
            back = kronecker_product(
                prepared["weight"] * getattr(self, f"width_{i}") * bent,
                transposed(prepared["factors"]),
            )
            offsets.append(back.reshape(self.terms, *x.shape).sum(0))
        if self.coupling is None:
            return offsets
        prepared, width = p["coupling"], self.coupling_width
        bent = torch.tanh((self.coupling.hidden(u, prepared) + self.coupling.offset) / width)
        coupled = self.coupling.backward_through(prepared["weight"] * width * bent, prepared)
        return [a + b for a, b in zip(offsets, coupled, strict=True)]

    def _scaled(self, i: int, x: Tensor, prepared: Mapping[str, Any]) -> Tensor:
        """(A_k u + c_k) / tau for the tensors of one group, the terms stacked."""
        layer = cast(HiddenLayer, self.layers[i])
        width: Tensor = getattr(self, f"width_{i}")
        stacked = x.repeat(layer.terms, *[1] * (x.dim() - 1)) if layer.terms > 1 else x
        hidden = kronecker_product(stacked, prepared["factors"]) + layer.offset
        return hidden / width

    def inverse(self, phi: Params) -> Params:
        """By a fixed point that contracts at least by rho each time."""
        check_point(phi, self.groups.shapes)
        p = self.prepare()
        targets = [
            Scaling.solve(x - shift, s, transpose=True)
            for x, shift, s in zip(self.groups.stack(phi), self.shifts, p["scalings"], strict=True)
        ]
        shapes, sizes = [t.shape for t in targets], [t.numel() for t in targets]

        def cut(flat: Tensor) -> list[Tensor]:
            return [t.reshape(s) for t, s in zip(flat.split(sizes), shapes, strict=True)]

        def offset(flat: Tensor) -> Tensor:
            return torch.cat([n.flatten() for n in self._offset(cut(flat), p)])

        u = cut(solve_contraction(torch.cat([t.flatten() for t in targets]), offset, self.rho))
        return self.groups.unstack(
            [Scaling.solve(x, s) for x, s in zip(u, p["scalings"], strict=True)]
        )

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds:
        if not current:
            reach = math.exp(self.log_range)
            return ((1 - self.rho) / reach, (1 + self.rho) * reach)
        self.check_parameters()
        p = self.prepare()
        down = up = 0.0
        for prepared in p["layers"]:
            if prepared is not None:
                # Factors have norm one: the largest weight of each term bounds that term.
                terms = prepared["weight"].reshape(self.terms, -1)
                down = min(down, float(terms.amin(1).clamp_max(0).sum()))
                up = max(up, float(terms.amax(1).clamp_min(0).sum()))
        if p["coupling"] is not None:
            down += min(0.0, float(p["coupling"]["weight"].min()))
            up += max(0.0, float(p["coupling"]["weight"].max()))
        spectra = [s.spectrum() for s in cast(Iterable[Scaling], self.scalings)]
        return ((1 + down) * min(s[0] for s in spectra), (1 + up) * max(s[1] for s in spectra))

    def potential(self, z: Params) -> Tensor:
        p = self.prepare()
        total = inner(self.groups.unstack(list(self.shifts)), z)
        u = [
            Scaling.apply_to(x, s) for x, s in zip(self.groups.stack(z), p["scalings"], strict=True)
        ]
        for i, x in enumerate(u):
            total = total + x.square().sum() / 2
            if (prepared := p["layers"][i]) is not None:
                bent = log_cosh(self._scaled(i, x, prepared))
                width = getattr(self, f"width_{i}")
                total = total + (prepared["weight"] * width.square() * bent).sum()
        if self.coupling is not None:
            width = self.coupling_width
            bent = log_cosh((self.coupling.hidden(u, p["coupling"]) + self.coupling.offset) / width)
            total = total + (p["coupling"]["weight"] * width.square() * bent).sum()
        return total
