r"""A Kronecker gradient network: a map that is the gradient of a convex function by construction.

Per tensor, with $u = Sz$,

$$\phi = b + S^\top\Big[u + \sum_k A_k^\top\big(w_k\,\tau \tanh((A_k u + c_k)/\tau)\big)
        + E^\top U^\top\big(\omega\,\tau' \tanh((U e + c')/\tau')\big)\Big],$$

where $A_k$ and $E$ are Kronecker products, $e$ concatenates $E u$ over *all* tensors (the last
term couples layers, in both directions), and $S = \mathrm{diag}(e^{a/2})$ or a Kronecker product.
Every factor is divided by its spectral norm and $\sum|w| + |\omega| \le \rho < 1$, so that the
bracket's Jacobian is symmetric with eigenvalues in $[1-\rho, 1+\rho]$ whatever is learned.

One hidden layer of the monotone gradient networks of Chaudhari, Pranav and Moura (2023).

Tensors of equal modes are stacked in a group, here and in `kernels.gradient_net`, which computes
the same with a hand-written backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import (
    Shape,
    ShapeGroups,
    kronecker_product,
    module_list,
    transposed,
)
from metamirror.linalg.spectral_norm import (
    UnitFactors,
    distinct_singular_values,
    spectral_normalised,
)
from metamirror.mirror_maps.base import (
    Bounds,
    MirrorMap,
    check_contraction,
    check_point,
    inner,
    lasting_bounds,
    log_cosh,
    solve_contraction,
    spread,
)
from metamirror.mirror_maps.bounded_metric import Metric, Scaling
from metamirror.mirror_maps.kernels.gradient_net import NetPass
from metamirror.mirror_maps.kernels.one_operation import one_operation


class HiddenLayer(nn.Module):
    """The terms A_k'(w_k tau tanh((A_k u + c_k) / tau)) of one group of tensors."""

    def __init__(self, count: int, shape: Shape, terms: int, largest: float):
        super().__init__()
        self.terms, self.largest = terms, largest
        self.factors = UnitFactors(terms * count, shape, shape)
        self.weight = nn.Parameter(torch.zeros(terms * count, *shape))
        self.offset = nn.Parameter(torch.zeros(terms * count, *shape))

    def bounded_weight(self) -> Tensor:
        """The weights w_k, whose magnitude stays below `largest`."""
        return self.largest * torch.tanh(self.weight)

    def hidden(self, u: Tensor, tau: Tensor) -> Tensor:
        """(A_k u + c_k) / tau, term by term."""
        copies = u.repeat(self.terms, *[1] * (u.dim() - 1))
        return (kronecker_product(copies, self.factors()) + self.offset) / tau

    def forward(self, u: Tensor, tau: Tensor) -> Tensor:
        bent = self.bounded_weight() * tau * torch.tanh(self.hidden(u, tau))
        back = kronecker_product(bent, transposed(self.factors()))
        return back.reshape(self.terms, *u.shape).sum(0)


class Coupling(nn.Module):
    """E'U'(omega tau tanh((U e + c') / tau)): a layer that reads, and writes to, every tensor."""

    def __init__(self, groups: ShapeGroups, units: int, largest: float):
        super().__init__()
        self.largest = largest
        self.encoded = [
            (len(names), *(max(1, n // 8) for n in shape))
            for shape, names in groups.members.items()
        ]
        self.encoders = module_list(
            UnitFactors(small[0], small[1:], shape)
            for shape, small in zip(groups.members, self.encoded, strict=True)
        )
        self.sizes = [math.prod(shape) for shape in self.encoded]
        self.mixing = nn.Parameter(distinct_singular_values(1, units, sum(self.sizes))[0])
        self.weight = nn.Parameter(torch.zeros(units))
        self.offset = nn.Parameter(torch.zeros(units))

    def bounded_weight(self) -> Tensor:
        """omega, whose magnitude stays below `largest`."""
        return self.largest * torch.tanh(self.weight)

    def hidden(self, u: list[Tensor], tau: Tensor) -> Tensor:
        """(U e + c') / tau, where e concatenates E u over all tensors."""
        codes = [kronecker_product(x, e()) for x, e in zip(u, self.encoders, strict=True)]
        e = torch.cat([code.flatten() for code in codes])
        return (spectral_normalised(self.mixing) @ e + self.offset) / tau

    def forward(self, u: list[Tensor], tau: Tensor) -> list[Tensor]:
        bent = self.bounded_weight() * tau * torch.tanh(self.hidden(u, tau))
        back = (spectral_normalised(self.mixing).mT @ bent).split(self.sizes)
        return [
            kronecker_product(code.reshape(shape), transposed(e()))
            for code, shape, e in zip(back, self.encoded, self.encoders, strict=True)
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
        fast: use the hand-written passes of `kernels.gradient_net`; without, plain autograd
            through the equation. Same results.

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
        fast: bool = True,
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
        coupling = coupling if coupled else 0.0
        self.rho, self.log_range, self.fast = rho, log_range, fast
        self.groups = ShapeGroups({n: tuple(t.shape) for n, t in start.items()}, modes)
        stacks = [(len(names), shape) for shape, names in self.groups.members.items()]
        self.scalings = module_list(Scaling(n, shape, metric, log_range) for n, shape in stacks)
        largest = (rho - coupling) / terms
        # Vectors have one mode: a hidden layer on it would be dense. Theirs is the coupling.
        self.layers = module_list(
            HiddenLayer(n, shape, terms, largest) if len(shape) > 1 else nn.Identity()
            for n, shape in stacks
        )
        self.shifts = nn.ParameterList(torch.zeros(n, *shape) for n, shape in stacks)
        for i, (shape, names) in enumerate(self.groups.members.items()):
            # A tanh bends over a distance of its width: the spread of what it acts on.
            widths = torch.tensor([spread(start[name]) for name in names]).repeat(terms)
            self.register_buffer(f"width_{i}", widths.view(-1, *[1] * len(shape)))
        self.coupling = Coupling(self.groups, units, coupling) if coupled else None
        self.register_buffer("coupling_width", torch.ones(()))
        like = next(iter(start.values()))
        self.to(device=like.device, dtype=like.dtype)
        self.kernel = NetPass(self.groups)
        if self.coupling is not None and like.device.type != "meta":
            with torch.no_grad():
                hidden = self.kernel.coupling_argument(start, self._prepared_coupling())
                size = float(hidden.square().mean().sqrt()) / 2
            self.coupling_width.fill_(size if size > 0 else 1.0)

    def offsets(self, u: list[Tensor]) -> list[Tensor]:
        """N(u), what the bracket adds to u: the hidden layers' terms and the coupling's."""
        found = [
            layer(x, self._width(i)) if isinstance(layer, HiddenLayer) else torch.zeros_like(x)
            for i, (x, layer) in enumerate(zip(u, self.layers, strict=True))
        ]
        if self.coupling is None:
            return found
        return [a + b for a, b in zip(found, self.coupling(u, self.coupling_width), strict=True)]

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        if self.fast:
            names = list(self.groups.shapes)
            found = one_operation(
                self.kernel, [z[name] for name in names], prepared or self.prepare()
            )
            return dict(zip(names, found, strict=True))
        s = [scaling.factors() for scaling in self.scalings]
        u = [Scaling.apply_to(x, s_i) for x, s_i in zip(self.groups.stack(z), s, strict=True)]
        phi = [
            b + Scaling.apply_to(x + n, s_i, transpose=True)
            for b, x, n, s_i in zip(self.shifts, u, self.offsets(u), s, strict=True)
        ]
        return self.groups.unstack(phi)

    def inverse(self, phi: Params) -> Params:
        """By a fixed point that contracts at least by rho each time."""
        check_point(phi, self.groups.shapes)
        s = [scaling.factors() for scaling in self.scalings]
        targets = [
            Scaling.solve(x - b, s_i, transpose=True)
            for x, b, s_i in zip(self.groups.stack(phi), self.shifts, s, strict=True)
        ]
        u = solve_contraction(targets, self.offsets, self.rho)
        return self.groups.unstack([Scaling.solve(x, s_i) for x, s_i in zip(u, s, strict=True)])

    def potential(self, z: Params) -> Tensor:
        r"""$\langle b, z\rangle + |u|^2/2 + \sum w\tau^2\log\cosh((Au + c)/\tau)$, coupling too."""
        total = inner(self.groups.unstack(list(self.shifts)), z)
        u = [
            Scaling.apply_to(x, scaling.factors())
            for x, scaling in zip(self.groups.stack(z), self.scalings, strict=True)
        ]
        for i, (x, layer) in enumerate(zip(u, self.layers, strict=True)):
            total = total + x.square().sum() / 2
            if isinstance(layer, HiddenLayer):
                tau = self._width(i)
                bent = log_cosh(layer.hidden(x, tau))
                total = total + (layer.bounded_weight() * tau.square() * bent).sum()
        if self.coupling is not None:
            bent = log_cosh(self.coupling.hidden(u, self.coupling_width))
            weight = self.coupling.bounded_weight() * self.coupling_width.square()
            total = total + (weight * bent).sum()
        return total

    def prepare(self) -> dict[str, Any]:
        if not self.fast:
            return {}
        return self.kernel.prepare(
            [scaling.factors() for scaling in self.scalings],
            self.shifts,
            [
                (layer.factors.merged(), layer.bounded_weight(), layer.offset, self._width(i))
                if isinstance(layer, HiddenLayer)
                else None
                for i, layer in enumerate(self.layers)
            ],
            self._prepared_coupling(),
        )

    def _prepared_coupling(self) -> dict[str, Any] | None:
        if self.coupling is None:
            return None
        c = self.coupling
        return NetPass.prepare_coupling(
            [encoder.merged() for encoder in c.encoders],
            spectral_normalised(c.mixing),
            c.bounded_weight(),
            c.offset,
            self.coupling_width,
        )

    def _width(self, group: int) -> Tensor:
        width: Tensor = getattr(self, f"width_{group}")
        return width

    def constants(self) -> list[nn.Parameter]:
        return list(self.shifts)

    @torch.no_grad()
    def bounds(self, *, current: bool = False) -> Bounds:
        if not current:
            return lasting_bounds(self.rho, self.log_range)
        self.check_parameters()
        down = up = 0.0
        for layer in self.layers:
            if isinstance(layer, HiddenLayer):
                # Factors have norm one: the largest weight of each term bounds that term.
                terms = layer.bounded_weight().reshape(layer.terms, -1)
                down = min(down, float(terms.amin(1).clamp_max(0).sum()))
                up = max(up, float(terms.amax(1).clamp_min(0).sum()))
        if self.coupling is not None:
            weight = self.coupling.bounded_weight()
            down += min(0.0, float(weight.min()))
            up += max(0.0, float(weight.max()))
        spectra = [scaling.spectrum() for scaling in self.scalings]
        return ((1 + down) * min(s[0] for s in spectra), (1 + up) * max(s[1] for s in spectra))
