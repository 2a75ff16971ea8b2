r"""How a gradient network is computed, group by group of tensors.

With $\tanh(x) = 2\,\mathrm{logistic}(2x) - 1$, whose logistic is the quicker function, a hidden
layer is $A^\top(w (2\,\mathrm{logistic}(Au + c) - 1))$: widths and the factor two stand in A, c
and w, once per outer step. The coupling is the same layer on the embeddings $e = Eu$.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metamirror.core.tasks import Params
from metamirror.linalg.kronecker import ShapeGroups, transposed
from metamirror.linalg.kronecker_layers import merged_factors, product, product_backward
from metamirror.linalg.tensor_stacks import Packing

Prepared = Mapping[str, Any]
Scale = Tensor | list[Tensor]


@dataclass
class GroupTrace:
    """What the backward pass reads of one group: operands of each product, and points."""

    x: Tensor
    u: Tensor
    bracket: Tensor | None = None
    bent: Tensor | None = None
    operands: dict[str, list[Tensor]] = field(default_factory=dict)


@dataclass
class NetTrace:
    """What the backward pass reads."""

    groups: list[GroupTrace]
    embedding: Tensor | None = None
    bent: Tensor | None = None
    mixed: Tensor | None = None


def added(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the factors of a map and of its transpose, together."""
    return [a + b.mT for a, b in zip(one, other, strict=True)]


def over_points(grad: Tensor) -> Tensor:
    """The gradient in what all points share."""
    return grad.sum(-1) if grad.shape[-1] > 1 else grad.squeeze(-1)


class NetPass:
    """phi = b + S'[u + N(u)], u = Sz, and its derivative.

    Tensors read by a product are (tensors, points, numbers), those written by one (tensors,
    numbers, points).
    """

    def __init__(self, groups: ShapeGroups):
        stacks = groups.members
        sizes = [[math.prod(shape)] * len(names) for shape, names in stacks.items()]
        self.packing = Packing(groups.shapes, list(stacks.values()), sizes)

    @staticmethod
    def prepare_scalings(scalings: Iterable[Scale], shifts: Iterable[Tensor]) -> dict[str, Any]:
        """S and b of each group."""
        merged = [
            s.flatten(1) if isinstance(s, Tensor) else merged_factors(s)[::-1] for s in scalings
        ]
        return {"scalings": merged, "shifts": [shift.flatten(1) for shift in shifts]}

    @staticmethod
    def prepare_layer(
        factors: list[Tensor], weight: Tensor, offset: Tensor, width: Tensor
    ) -> dict[str, Any]:
        """A, c and w of A'(w (2 logistic(Au + c) - 1)), the width of the tanh among them."""
        return {
            "factors": [factors[0] * (2 / width.view(-1, 1, 1)), *factors[1:]],
            "offset": (offset * (2 / width)).flatten(1),
            "weight": (weight * width.square() / 2).flatten(1),
        }

    @staticmethod
    def prepare_coupling(
        encoders: list[list[Tensor]], mixing: Tensor, weight: Tensor, offset: Tensor, width: Tensor
    ) -> dict[str, Any]:
        """As for a hidden layer, with U in the place of A."""
        return {
            "encoders": encoders,
            "mixing": mixing * (2 / width),
            "offset": offset * (2 / width),
            "weight": weight * width.square() / 2,
        }

    def coupling_argument(self, z: Params, coupling: Prepared) -> Tensor:
        """Twice the argument of the coupling's tanh at z, where S is the identity."""
        u = self.packing.pack([t.reshape(1, -1) for t in z.values()])
        return self._mixed(u, coupling, NetTrace([GroupTrace(x, x) for x in u]))

    def forward_pass(self, z: list[Tensor], p: Prepared) -> tuple[list[Tensor], NetTrace]:
        """Phi, and what the backward pass reads."""
        trace = NetTrace([GroupTrace(x, x) for x in self.packing.pack(z)])
        for group, s in zip(trace.groups, p["scalings"], strict=True):
            group.u = self._scaled(group.x, s, group, "scale").mT
        offsets = self._offsets([group.u for group in trace.groups], p, trace)
        phi = []
        for group, offset, s, shift in zip(
            trace.groups, offsets, p["scalings"], p["shifts"], strict=True
        ):
            group.bracket = group.u.mT if offset is None else group.u.mT + offset
            found = self._scaled(group.bracket.mT, s, group, "scale'", transpose=True)
            phi.append(found + shift.unsqueeze(-1))
        return self.packing.unpack(phi), trace

    @staticmethod
    def _scaled(
        x: Tensor, s: Scale, group: GroupTrace, name: str, *, transpose: bool = False
    ) -> Tensor:
        """Sx, or S'x."""
        if isinstance(s, Tensor):
            return s.unsqueeze(-1) * x.mT
        operands = group.operands.setdefault(name, [])
        found = product(x, transposed(s) if transpose else s, operands)
        return found.reshape(x.mT.shape)

    def _offsets(self, u: list[Tensor], p: Prepared, trace: NetTrace) -> list[Tensor | None]:
        """N(u): what the bracket adds to u, a contraction."""
        found: list[Tensor | None] = []
        for x, layer, group in zip(u, p["layers"], trace.groups, strict=True):
            offset = None
            if layer is not None:
                factors, weight = layer["factors"], layer["weight"].unsqueeze(-1)
                group.bent = torch.sigmoid(self._hidden(x, layer, group))
                pushed = torch.addcmul(-weight, weight, group.bent, value=2)
                operands = group.operands.setdefault("back", [])
                back = product(pushed.mT, transposed(factors), operands)
                offset = back.reshape(-1, *x.mT.shape)
                offset = offset.sum(0) if len(offset) > 1 else offset[0]
            found.append(offset)
        if p["coupling"] is None:
            return found
        coupled = self._coupled(u, p["coupling"], trace)
        return [b if a is None else a + b for a, b in zip(found, coupled, strict=True)]

    @staticmethod
    def _hidden(x: Tensor, layer: Prepared, group: GroupTrace) -> Tensor:
        """Twice the argument of tanh in the hidden layers of one group, (terms x tensors, ..)."""
        operands = group.operands.setdefault("forth", [])
        read = product(x, layer["factors"], operands)
        offset: Tensor = layer["offset"]
        return read.reshape(*offset.shape, x.shape[1]) + offset.unsqueeze(-1)

    @staticmethod
    def _mixed(u: list[Tensor], coupling: Prepared, trace: NetTrace) -> Tensor:
        """Twice the argument of tanh in the coupling, (units, points)."""
        points = u[0].shape[1]
        parts = [
            product(x, factors, group.operands.setdefault("code", [])).reshape(-1, points)
            for x, factors, group in zip(u, coupling["encoders"], trace.groups, strict=True)
        ]
        trace.embedding = torch.cat(parts)
        return torch.addmm(coupling["offset"].unsqueeze(-1), coupling["mixing"], trace.embedding)

    def _coupled(self, u: list[Tensor], coupling: Prepared, trace: NetTrace) -> list[Tensor]:
        trace.bent = torch.sigmoid(self._mixed(u, coupling, trace))
        weight = coupling["weight"].unsqueeze(-1)
        trace.mixed = torch.addcmul(-weight, weight, trace.bent, value=2)
        codes = coupling["mixing"].mT @ trace.mixed
        found = []
        for x, factors, group, code in zip(
            u, coupling["encoders"], trace.groups, self._split(codes, coupling, u), strict=True
        ):
            operands = group.operands.setdefault("code'", [])
            read = code.reshape(len(x), -1, code.shape[1]).mT
            found.append(product(read, transposed(factors), operands).reshape(x.mT.shape))
        return found

    @staticmethod
    def _split(codes: Tensor, coupling: Prepared, u: list[Tensor]) -> Sequence[Tensor]:
        sizes = []
        for x, factors in zip(u, coupling["encoders"], strict=True):
            size = x.shape[0] * x.shape[2]
            for f in factors:
                size = size // f.shape[2] * f.shape[1]
            sizes.append(size)
        parts: Sequence[Tensor] = torch.split(codes, sizes)
        return parts

    def backward_pass(
        self, grads: list[Tensor], p: Prepared, trace: NetTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        """The gradients in z and in what was prepared."""
        to_shifts, to_scalings, to_brackets = [], [], []
        for grad, s, group in zip(
            self.packing.pack(grads), p["scalings"], trace.groups, strict=True
        ):
            assert group.bracket is not None
            grad = grad.mT
            to_shifts.append(over_points(grad))
            if isinstance(s, Tensor):
                to_brackets.append(grad * s.unsqueeze(-1))
                to_scalings.append([over_points(grad * group.bracket)])
            else:
                back, to_s = product_backward(grad, transposed(s), group.operands["scale'"])
                to_brackets.append(back.reshape(group.x.shape).mT)
                to_scalings.append(to_s)
        to_u, to_layers = [], []
        for grad, layer, group in zip(to_brackets, p["layers"], trace.groups, strict=True):
            through, to_layer = self._hidden_backward(grad, layer, group)
            to_u.append(grad if through is None else grad + through)
            to_layers.append(to_layer)
        to_coupling = None
        if p["coupling"] is not None:
            through_coupling, to_coupling = self._coupled_backward(
                to_brackets, p["coupling"], trace
            )
            to_u = [a + b for a, b in zip(to_u, through_coupling, strict=True)]
        to_z: list[Tensor] = []
        to_scales: list[Scale] = []
        for grad, s, group, once in zip(
            to_u, p["scalings"], trace.groups, to_scalings, strict=True
        ):
            if isinstance(s, Tensor):
                to_z.append(grad * s.unsqueeze(-1))
                to_scales.append(once[0] + over_points(grad * group.x.mT))
            else:
                back, to_s = product_backward(grad, s, group.operands["scale"])
                to_z.append(back.reshape(group.x.shape).mT)
                to_scales.append(added(to_s, once))
        prepared = {
            "scalings": to_scales,
            "shifts": to_shifts,
            "layers": to_layers,
            "coupling": to_coupling,
        }
        return self.packing.unpack(to_z), prepared

    @staticmethod
    def _hidden_backward(
        grad: Tensor, layer: Prepared | None, group: GroupTrace
    ) -> tuple[Tensor | None, dict[str, Any] | None]:
        if layer is None or group.bent is None:
            return None, None
        factors, weight, bent = layer["factors"], layer["weight"].unsqueeze(-1), group.bent
        terms = len(bent) // len(grad)
        given = grad if terms == 1 else grad.repeat(terms, 1, 1)
        to_pushed, to_turned = product_backward(given, transposed(factors), group.operands["back"])
        to_pushed = to_pushed.reshape(bent.mT.shape).mT
        to_weight = torch.addcmul(-to_pushed, to_pushed, bent, value=2)
        # 2 logistic' = 2 logistic (1 - logistic).
        slope = torch.addcmul(bent, bent, bent, value=-1)
        to_hidden = (2 * weight * to_pushed).mul_(slope)
        back, to_factors = product_backward(to_hidden, factors, group.operands["forth"])
        back = back.reshape(terms, *group.x.shape)
        prepared = {
            "factors": added(to_factors, to_turned),
            "offset": over_points(to_hidden),
            "weight": over_points(to_weight),
        }
        return (back.sum(0) if terms > 1 else back[0]).mT, prepared

    def _coupled_backward(
        self, grads: list[Tensor], coupling: Prepared, trace: NetTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        assert trace.embedding is not None
        assert trace.bent is not None
        assert trace.mixed is not None
        points = grads[0].shape[-1]
        mixing, weight = coupling["mixing"], coupling["weight"].unsqueeze(-1)
        codes, turned_grads = [], []
        for grad, factors, group in zip(grads, coupling["encoders"], trace.groups, strict=True):
            read, to_turned = product_backward(grad, transposed(factors), group.operands["code'"])
            codes.append(read.reshape(len(grad), points, -1).mT.reshape(-1, points))
            turned_grads.append(to_turned)
        to_codes = torch.cat(codes)
        to_pushed = mixing @ to_codes
        to_hidden = (
            2 * weight * to_pushed * torch.addcmul(trace.bent, trace.bent, trace.bent, value=-1)
        )
        to_embedding = mixing.mT @ to_hidden
        u = [group.u for group in trace.groups]
        through, to_encoders = [], []
        for x, part, factors, group, to_turned in zip(
            u,
            self._split(to_embedding, coupling, u),
            coupling["encoders"],
            trace.groups,
            turned_grads,
            strict=True,
        ):
            back, to_factors = product_backward(part, factors, group.operands["code"])
            through.append(back.reshape(x.shape).mT)
            to_encoders.append(added(to_factors, to_turned))
        prepared = {
            "encoders": to_encoders,
            "mixing": torch.addmm(trace.mixed @ to_codes.mT, to_hidden, trace.embedding.mT),
            "offset": over_points(to_hidden),
            "weight": over_points(torch.addcmul(-to_pushed, to_pushed, trace.bent, value=2)),
        }
        return through, prepared
