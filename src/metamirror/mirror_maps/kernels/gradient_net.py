r"""How a gradient network is computed, group by group of tensors.

With $\tanh(x) = 2\,\mathrm{logistic}(2x) - 1$, whose logistic is the quicker function, a hidden
layer is $A^\top(w (2\,\mathrm{logistic}(Au + c) - 1))$: widths and the factor two stand in A, c
and w, once per outer step. The coupling is the same layer on the embeddings $e = Eu$. Where S is a
Kronecker product, S stands in A and E as well, and $S^\top S$ is one more head that reads z.

Tensors are (tensors, points, numbers).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metamirror.linalg.kronecker import ShapeGroups, transposed
from metamirror.linalg.kronecker_layers import over_heads, over_points, product, product_backward
from metamirror.linalg.tensor_stacks import Packing, pieces_of, rows_of

Prepared = Mapping[str, Any]
Operands = list[Tensor]


def logistic_form(matrix: Tensor, offset: Tensor, weight: Tensor, tau: Tensor) -> list[Tensor]:
    """Rewrite A'(w tau tanh((Au + c) / tau)) as A'(w (2 logistic(Au + c) - 1)): A, c, w."""
    shape = [-1, *[1] * (matrix.dim() - 1)] if tau.dim() else []
    return [matrix * (2 / tau.view(shape)), offset * (2 / tau), weight * tau.square() / 2]


def bent(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logistic, and w (2 logistic - 1)."""
    logistic = torch.sigmoid(hidden)
    weight = weight.unsqueeze(-2)
    return logistic, torch.addcmul(-weight, weight, logistic, value=2)


def bent_backward(grad: Tensor, logistic: Tensor, weight: Tensor) -> tuple[Tensor, Prepared]:
    """Return the gradients in what was bent, and in the offset and the weight."""
    # 2 logistic' = 2 logistic (1 - logistic).
    slope = torch.addcmul(logistic, logistic, logistic, value=-1)
    to_hidden = (2 * weight.unsqueeze(-2) * grad).mul_(slope)
    to_weight = torch.addcmul(-grad, grad, logistic, value=2)
    return to_hidden, {"offset": over_points(to_hidden), "weight": over_points(to_weight)}


def summed(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[Tensor]:
    """Add two lists pair by pair."""
    return [a + b for a, b in zip(one, other, strict=True)]


class HiddenTrace(NamedTuple):
    """What a hidden layer's backward pass reads."""

    forth: Operands
    logistic: Tensor
    back: Operands


class CouplingTrace(NamedTuple):
    """What the coupling's backward pass reads."""

    forth: list[Operands]
    sizes: list[int]
    embedding: Tensor
    logistic: Tensor
    pushed: Tensor
    back: list[Operands]


class NetTrace(NamedTuple):
    """What the backward pass reads: z and the bracket, and the operands of what is between them."""

    x: list[Tensor]
    brackets: list[Tensor]
    layers: list[HiddenTrace | None]
    coupling: CouplingTrace | None


class NetPass:
    """phi = S'[u + N(u)], u = Sz, and its derivative."""

    def __init__(self, groups: ShapeGroups):
        sizes = {name: math.prod(shape) for name, shape in groups.shapes.items()}
        self.packing = Packing(sizes, list(groups.members.values()))

    def forward_pass(self, z: list[Tensor], p: Prepared) -> tuple[list[Tensor], NetTrace]:
        """Return phi, and what the backward pass reads."""
        x = self.packing.pack(z)
        u = scaled(x, p["diagonals"])
        brackets = list(u)
        layers: list[HiddenTrace | None] = [None] * len(u)
        for i, layer in enumerate(p["layers"]):
            if layer is not None:
                brackets[i], layers[i] = self._hidden(u[i], layer, p["diagonals"][i] is None)
        coupling = None
        if p["coupling"] is not None:
            coupled, coupling = self._coupled(u, p["coupling"])
            brackets = summed(brackets, coupled)
        found = scaled(brackets, p["diagonals"])
        if p["constant"] is not None:
            found = [a + b.unsqueeze(1) for a, b in zip(found, p["constant"], strict=True)]
        return self.packing.unpack(found), NetTrace(x, brackets, layers, coupling)

    def backward_pass(
        self, grads: list[Tensor], p: Prepared, trace: NetTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the gradients in z and in what was prepared."""
        given = self.packing.pack(grads)
        to_bracket = scaled(given, p["diagonals"])
        to_u = list(to_bracket)
        to_layers: list[Any] = [None] * len(to_u)
        for i, (layer, hidden) in enumerate(zip(p["layers"], trace.layers, strict=True)):
            if hidden is not None:
                squared = p["diagonals"][i] is None
                to_u[i], to_layers[i] = self._hidden_backward(to_u[i], layer, hidden, squared)
        to_coupling = None
        if trace.coupling is not None:
            coupled, to_coupling = self._coupled_backward(to_bracket, p["coupling"], trace.coupling)
            to_u = summed(to_u, coupled)
        return self.packing.unpack(scaled(to_u, p["diagonals"])), {
            "diagonals": [
                None if s is None else over_points(torch.addcmul(grad * bracket, to, x))
                for s, grad, bracket, to, x in zip(
                    p["diagonals"], given, trace.brackets, to_u, trace.x, strict=True
                )
            ],
            "layers": to_layers,
            "coupling": to_coupling,
            "constant": None if p["constant"] is None else [over_points(grad) for grad in given],
        }

    @staticmethod
    def _hidden(u: Tensor, layer: Prepared, squared: bool) -> tuple[Tensor, HiddenTrace]:
        """Return u, or S'Su, and what the hidden layers of a group add to it."""
        read, forth = product(u, layer["read"])
        base, read = (read[: len(u)], read[len(u) :]) if squared else (u, read)
        logistic, pushed = bent(read + layer["offset"].unsqueeze(1), layer["weight"])
        found, back = product(pushed, layer["write"])
        return base + over_heads(found, len(u)), HiddenTrace(forth, logistic, back)

    @staticmethod
    def _hidden_backward(
        grad: Tensor, layer: Prepared, trace: HiddenTrace, squared: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        terms = len(trace.logistic) // len(grad)
        given = grad if terms == 1 else grad.repeat(terms, 1, 1)
        to_pushed, to_write = product_backward(given, layer["write"], trace.back)
        to_hidden, to_rest = bent_backward(to_pushed, trace.logistic, layer["weight"])
        heads = torch.cat([grad, to_hidden]) if squared else to_hidden
        through, to_read = product_backward(heads, layer["read"], trace.forth)
        through = over_heads(through, len(grad))
        to_u = through if squared else grad + through
        return to_u, {"read": to_read, "write": to_write, **to_rest}

    @staticmethod
    def mixed(u: list[Tensor], p: Prepared) -> tuple[Tensor, Tensor, list[Tensor], list[Operands]]:
        """Return twice the argument of the coupling's tanh, the embedding, and its parts."""
        codes, operands = _unzip(product(x, e) for e, x in zip(p["encoders"], u, strict=True))
        embedding = torch.cat([rows_of(code) for code in codes], 1)
        hidden = torch.addmm(p["offset"], embedding, p["mixing"].mT)
        return hidden, embedding, codes, operands

    def _coupled(self, u: list[Tensor], p: Prepared) -> tuple[list[Tensor], CouplingTrace]:
        hidden, embedding, codes, forth = self.mixed(u, p)
        logistic, pushed = bent(hidden, p["weight"])
        sizes = [code.shape[0] * code.shape[2] for code in codes]
        parts = (pushed @ p["mixing"]).split(sizes, 1)
        found, back = _unzip(
            product(pieces_of(part, len(code)), transposed(e))
            for e, part, code in zip(p["encoders"], parts, codes, strict=True)
        )
        return found, CouplingTrace(forth, sizes, embedding, logistic, pushed, back)

    @staticmethod
    def _coupled_backward(
        grads: list[Tensor], p: Prepared, trace: CouplingTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        encoders, mixing = p["encoders"], p["mixing"]
        codes, to_turned = _unzip(
            product_backward(grad, transposed(e), operands)
            for grad, e, operands in zip(grads, encoders, trace.back, strict=True)
        )
        to_codes = torch.cat([rows_of(code) for code in codes], 1)
        to_hidden, to_rest = bent_backward(to_codes @ mixing.mT, trace.logistic, p["weight"])
        parts = (to_hidden @ mixing).split(trace.sizes, 1)
        through, to_encoders = _unzip(
            product_backward(pieces_of(part, len(code)), e, operands)
            for part, code, e, operands in zip(parts, codes, encoders, trace.forth, strict=True)
        )
        return through, {
            "encoders": [
                summed(forth, transposed(back))
                for forth, back in zip(to_encoders, to_turned, strict=True)
            ],
            "mixing": torch.addmm(trace.pushed.mT @ to_codes, to_hidden.mT, trace.embedding),
            **to_rest,
        }


def scaled(x: list[Tensor], diagonals: Sequence[Tensor | None]) -> list[Tensor]:
    """Return Dx, group by group; a group without a diagonal as it is."""
    pairs = zip(x, diagonals, strict=True)
    return [t if s is None else s.unsqueeze(1) * t for t, s in pairs]


def _unzip(pairs: Any) -> tuple[list[Any], list[Any]]:
    first, second = zip(*pairs, strict=True)
    return list(first), list(second)
