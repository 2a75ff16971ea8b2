r"""A Kronecker gradient network: a map that is the gradient of a convex function by construction.

Per tensor, with $u = Sz$,

$$\phi = S^\top\Big[u + \sum_k A_k^\top\big(w_k\,\tau \tanh((A_k u + c_k)/\tau)\big)
        + E^\top U^\top\big(\omega\,\tau' \tanh((U e + c')/\tau')\big)\Big],$$

where $A_k$ and $E$ are Kronecker products, $e$ concatenates $E u$ over *all* tensors (the last
term couples layers, in both directions), and $S = \mathrm{diag}(e^{a/2})$ or a Kronecker product.
Every factor is divided by its spectral norm and $\sum|w| + |\omega| \le \rho < 1$, so that the
bracket's Jacobian is symmetric with eigenvalues in $[1-\rho, 1+\rho]$ whatever is learned.

One hidden layer of the monotone gradient networks of Chaudhari, Pranav and Moura (2023).

Tensors of equal modes are stacked in a group, here and in `kernels.gradient_net`, which computes
the same with a hand-written backward pass.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metamirror.core.mirror_map import Bounds, check_point
from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import (
    Shape,
    ShapeGroups,
    kronecker_product,
    module_list,
    transposed,
)
from metamirror.linalg.kronecker_layers import merged_factors
from metamirror.linalg.one_operation import one_operation
from metamirror.linalg.parametrisation import SPEED
from metamirror.linalg.spectral_norm import (
    UnitFactors,
    spectral_normalised,
    times_inputs,
)
from metamirror.mirror_maps.base import ContractionMap, log_cosh, spread
from metamirror.mirror_maps.bounded_metric import Metric, Scaling
from metamirror.mirror_maps.kernels.gradient_net import NetPass, logistic_form


class Ridge(NamedTuple):
    r"""$A^\top(w\,\tau\tanh((Au + c)/\tau))$, gradient of $\sum w\tau^2\log\cosh((Au + c)/\tau)$.

    Attributes:
        read: u -> A u.
        write: y -> A'y.
        weight: w.
        offset: c.
        tau: the width of the tanh.
    """

    read: Callable[[Any], Tensor]
    write: Callable[[Tensor], Any]
    weight: Tensor
    offset: Tensor
    tau: Tensor

    def argument(self, u: Any) -> Tensor:
        return (self.read(u) + self.offset) / self.tau

    def gradient(self, u: Any) -> Any:
        return self.write(self.weight * self.tau * torch.tanh(self.argument(u)))

    def potential(self, u: Any) -> Tensor:
        return (self.weight * self.tau.square() * log_cosh(self.argument(u))).sum()


class HiddenLayer(nn.Module):
    """The terms A_k'(w_k tau tanh((A_k u + c_k) / tau)) of one group of tensors."""

    def __init__(self, count: int, shape: Shape, terms: int, largest: float):
        super().__init__()
        self.terms, self.largest = terms, largest
        self.factors = UnitFactors(terms * count, shape, shape)
        self.weight = nn.Parameter(torch.zeros(terms * count, *shape))
        self.offset = nn.Parameter(torch.zeros(terms * count, *shape))

    def bounded_weight(self) -> Tensor:
        """Return the weights w_k, whose magnitude stays below `largest`."""
        return self.largest * torch.tanh(SPEED * self.weight)

    def prepare(self, tau: Tensor) -> dict[str, Any]:
        """Return all terms, as the fast pass reads them."""
        first, *rest = self.factors.merged()
        first, offset, weight = logistic_form(first, tau * self.offset, self.bounded_weight(), tau)
        return {"factors": [first, *rest], "offset": offset.flatten(1), "weight": weight.flatten(1)}

    def forward(self, tau: Tensor) -> Ridge:
        """Return all terms, stacked."""
        a = self.factors()

        def read(u: Tensor) -> Tensor:
            return kronecker_product(u.repeat(self.terms, *[1] * (u.dim() - 1)), a)

        def write(y: Tensor) -> Tensor:
            back = kronecker_product(y, transposed(a))
            return back.reshape(self.terms, -1, *back.shape[1:]).sum(0)

        return Ridge(read, write, self.bounded_weight(), tau * self.offset, tau)


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
        self.mixing = nn.Parameter(times_inputs(1, units, sum(self.sizes))[0])
        self.weight = nn.Parameter(torch.zeros(units))
        self.offset = nn.Parameter(torch.zeros(units))

    def bounded_weight(self) -> Tensor:
        """Return omega, whose magnitude stays below `largest`."""
        return self.largest * torch.tanh(SPEED * self.weight)

    def prepare(self, tau: Tensor) -> dict[str, Any]:
        """Return the coupling, as the fast pass reads it."""
        mixing, offset, weight = logistic_form(
            spectral_normalised(self.mixing), tau * self.offset, self.bounded_weight(), tau
        )
        encoders = [encoder.merged() for encoder in self.encoders]
        return {"encoders": encoders, "mixing": mixing, "offset": offset, "weight": weight}

    def forward(self, tau: Tensor) -> Ridge:
        """Return the coupling, over the list of all groups' tensors."""
        mixing, encoders = spectral_normalised(self.mixing), [e() for e in self.encoders]

        def read(u: list[Tensor]) -> Tensor:
            codes = [kronecker_product(x, e) for x, e in zip(u, encoders, strict=True)]
            return mixing @ torch.cat([code.flatten() for code in codes])

        def write(y: Tensor) -> list[Tensor]:
            codes = (mixing.mT @ y).split(self.sizes)
            return [
                kronecker_product(code.reshape(shape), transposed(e))
                for code, shape, e in zip(codes, self.encoded, encoders, strict=True)
            ]

        return Ridge(read, write, self.bounded_weight(), tau * self.offset, tau)


class GradientNet(ContractionMap):
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
    >>> torch.equal(g(z)["w"], z["w"]), g.bounds(current=True)
    (True, (1.0, 1.0))
    """

    coupling_width: Tensor

    def __init__(
        self,
        start: Params,
        *,
        coupled: bool = True,
        metric: Metric = "kronecker",
        terms: int = 1,
        units: int = 128,
        rho: float = 0.9,
        coupling: float | None = None,
        log_range: float = 12.0,
        modes: Mapping[str, Shape] | None = None,
        fast: bool = True,
    ):
        super().__init__(rho, log_range)
        if terms < 1 or units < 1:
            raise ValueError(f"terms is {terms} and units {units}; both must be at least 1")
        if coupling is None:
            coupling = rho / 3
        if coupled and not 0 <= coupling <= rho:
            raise ValueError(
                f"coupling is {coupling}; as a part of rho = {rho} it lies in [0, rho]"
            )
        coupling = coupling if coupled else 0.0
        self.fast = fast
        self.groups = ShapeGroups({n: tuple(t.shape) for n, t in start.items()}, modes)
        stacks = [(len(names), shape) for shape, names in self.groups.members.items()]
        self.scalings = module_list(Scaling(n, shape, metric, log_range) for n, shape in stacks)
        largest = (rho - coupling) / terms
        # Vectors have one mode: a hidden layer on it would be dense. Theirs is the coupling.
        self.layers = module_list(
            HiddenLayer(n, shape, terms, largest) if len(shape) > 1 else nn.Identity()
            for n, shape in stacks
        )
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
                u = self.kernel.packing.pack([t.reshape(1, -1) for t in start.values()])
                # Of width one, and twice the argument: S is the identity at the start.
                twice = self.kernel.mixed(u, self.coupling.prepare(self.coupling_width))[0]
                size = float(twice.square().mean().sqrt()) / 2
            self.coupling_width.fill_(size if size > 0 else 1.0)

    def ridges(self) -> tuple[list[Ridge | None], Ridge | None]:
        """Return the hidden layer of each group, where it has one, and the coupling."""
        hidden = [
            layer(self._width(i)) if isinstance(layer, HiddenLayer) else None
            for i, layer in enumerate(self.layers)
        ]
        return hidden, None if self.coupling is None else self.coupling(self.coupling_width)

    @staticmethod
    def offsets(
        u: list[Tensor], hidden: list[Ridge | None], coupling: Ridge | None
    ) -> list[Tensor]:
        """Return N(u), what the bracket adds to u."""
        found = [
            torch.zeros_like(x) if ridge is None else ridge.gradient(x)
            for x, ridge in zip(u, hidden, strict=True)
        ]
        if coupling is None:
            return found
        return [a + b for a, b in zip(found, coupling.gradient(u), strict=True)]

    def forward(self, z: Params, prepared: Mapping[str, Any] | None = None) -> Params:
        if self.fast:
            names = list(self.groups.shapes)
            given = [z[name] for name in names]
            found = one_operation(self.kernel, given, prepared or self.prepare())
            return dict(zip(names, found, strict=True))
        s = [scaling.factors() for scaling in self.scalings]
        u = [Scaling.apply_to(x, s_i) for x, s_i in zip(self.groups.stack(z), s, strict=True)]
        n = self.offsets(u, *self.ridges())
        phi = [
            Scaling.apply_to(u_i + n_i, s_i, transpose=True)
            for u_i, n_i, s_i in zip(u, n, s, strict=True)
        ]
        return self.groups.unstack(phi)

    def inverse(self, phi: Params) -> Params:
        """Iterate to a fixed point, which contracts at least by rho each time."""
        check_point(phi, self.groups.shapes)
        s = [scaling.factors() for scaling in self.scalings]
        targets = [
            Scaling.solve(x, s_i, transpose=True)
            for x, s_i in zip(self.groups.stack(phi), s, strict=True)
        ]
        ridges = self.ridges()
        u = self._solve(targets, lambda u: self.offsets(u, *ridges))
        return self.groups.unstack([Scaling.solve(x, s_i) for x, s_i in zip(u, s, strict=True)])

    def potential(self, z: Params) -> Tensor:
        u = [
            Scaling.apply_to(x, scaling.factors())
            for x, scaling in zip(self.groups.stack(z), self.scalings, strict=True)
        ]
        hidden, coupling = self.ridges()
        total = torch.stack([x.square().sum() for x in u]).sum() / 2
        for x, ridge in zip(u, hidden, strict=True):
            if ridge is not None:
                total = total + ridge.potential(x)
        return total if coupling is None else total + coupling.potential(u)

    def prepare(self) -> dict[str, Any]:
        if not self.fast:
            return {}
        scalings = [scaling.factors() for scaling in self.scalings]
        return {
            "scalings": [
                s.flatten(1) if isinstance(s, Tensor) else merged_factors(s)[::-1] for s in scalings
            ],
            "layers": [
                layer.prepare(self._width(i)) if isinstance(layer, HiddenLayer) else None
                for i, layer in enumerate(self.layers)
            ],
            "coupling": self.coupling and self.coupling.prepare(self.coupling_width),
            "constant": None,
        }

    def with_constant(
        self, prepared: Mapping[str, Any], constant: Params
    ) -> Mapping[str, Any] | None:
        if not self.fast:
            return None
        packed = self.kernel.packing.pack_one([constant[name] for name in self.groups.shapes])
        return {**prepared, "constant": packed}

    def _width(self, group: int) -> Tensor:
        width: Tensor = getattr(self, f"width_{group}")
        return width

    def _current_bounds(self) -> Bounds:
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
