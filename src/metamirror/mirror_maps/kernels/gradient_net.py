r"""How a gradient network is computed, group by group of tensors.

With $\tanh(x) = 2\,\mathrm{logistic}(2x) - 1$, whose logistic is the quicker function, a hidden
layer is $A^\top(w (2\,\mathrm{logistic}(Au + c) - 1))$: widths and the factor two stand in A, c
and w, once per outer step. The coupling is the same layer on the embeddings $e = Eu$.

Tensors read by a product are (tensors, points, numbers), those written by one (tensors, numbers,
points).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metamirror.linalg.kronecker import ShapeGroups, transposed
from metamirror.linalg.kronecker_layers import over_heads, over_points, product, product_backward
from metamirror.linalg.tensor_stacks import Packing

Prepared = Mapping[str, Any]
Matrix = Tensor | list[Tensor]
"""A diagonal, or the factors of a Kronecker product in the order of their use."""
Operands = list[Tensor]


def logistic_form(matrix: Tensor, offset: Tensor, weight: Tensor, tau: Tensor) -> list[Tensor]:
    """Rewrite A'(w tau tanh((Au + c) / tau)) as A'(w (2 logistic(Au + c) - 1)): A, c, w."""
    shape = [-1, *[1] * (matrix.dim() - 1)] if tau.dim() else []
    return [matrix * (2 / tau.view(shape)), offset * (2 / tau), weight * tau.square() / 2]


def applied(s: Matrix, x: Tensor, *, transpose: bool = False) -> tuple[Tensor, Operands]:
    """Return Sx, or S'x, and what its derivative reads."""
    if isinstance(s, Tensor):
        return s.unsqueeze(-1) * x.mT, [x.mT]
    found, operands = product(x, transposed(s) if transpose else s)
    return found.reshape(len(s[0]), -1, x.shape[1]), operands


def applied_backward(
    grad: Tensor, s: Matrix, operands: Operands, *, transpose: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients in x and in S."""
    if isinstance(s, Tensor):
        return grad * s.unsqueeze(-1), [over_points(grad * operands[0])]
    back, to_s = product_backward(grad, transposed(s) if transpose else s, operands)
    back = back.reshape(len(s[0]), grad.shape[-1], -1).mT
    return back, transposed(to_s) if transpose else to_s


def bent(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logistic, and w (2 logistic - 1)."""
    logistic = torch.sigmoid(hidden)
    weight = weight.unsqueeze(-1)
    return logistic, torch.addcmul(-weight, weight, logistic, value=2)


def bent_backward(grad: Tensor, logistic: Tensor, weight: Tensor) -> tuple[Tensor, Prepared]:
    """Return the gradients in what was bent, and in the offset and the weight."""
    # 2 logistic' = 2 logistic (1 - logistic).
    slope = torch.addcmul(logistic, logistic, logistic, value=-1)
    to_hidden = (2 * weight.unsqueeze(-1) * grad).mul_(slope)
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
    """What the backward pass reads: the operands of S and S', and of the layers between them."""

    scaled: list[Operands]
    layers: list[HiddenTrace | None]
    coupling: CouplingTrace | None
    scaled_back: list[Operands]


class NetPass:
    """phi = S'[u + N(u)], u = Sz, and its derivative."""

    def __init__(self, groups: ShapeGroups):
        sizes = {name: math.prod(shape) for name, shape in groups.shapes.items()}
        self.packing = Packing(sizes, list(groups.members.values()))

    def forward_pass(self, z: list[Tensor], p: Prepared) -> tuple[list[Tensor], NetTrace]:
        """Return phi, and what the backward pass reads."""
        x = self.packing.pack(z)
        u, scaled = _unzip(applied(s, x_i) for s, x_i in zip(p["scalings"], x, strict=True))
        layers: list[HiddenTrace | None] = [None] * len(u)
        offsets: list[Tensor | None] = [None] * len(u)
        for i, layer in enumerate(p["layers"]):
            if layer is not None:
                offsets[i], layers[i] = self._hidden(u[i].mT, layer)
        coupling = None
        if p["coupling"] is not None:
            coupled, coupling = self._coupled([u_i.mT for u_i in u], p["coupling"])
            offsets = [b if a is None else a + b for a, b in zip(offsets, coupled, strict=True)]
        bracket = [a if b is None else a + b for a, b in zip(u, offsets, strict=True)]
        found, scaled_back = _unzip(
            applied(s, x.mT, transpose=True) for s, x in zip(p["scalings"], bracket, strict=True)
        )
        if p["constant"] is not None:
            found = [a + b.unsqueeze(-1) for a, b in zip(found, p["constant"], strict=True)]
        return self.packing.unpack(found), NetTrace(scaled, layers, coupling, scaled_back)

    def backward_pass(
        self, grads: list[Tensor], p: Prepared, trace: NetTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the gradients in z and in what was prepared."""
        scalings = p["scalings"]
        given = [grad.mT for grad in self.packing.pack(grads)]
        to_bracket, to_turned = _unzip(
            applied_backward(grad, s, operands, transpose=True)
            for grad, s, operands in zip(given, scalings, trace.scaled_back, strict=True)
        )
        to_u = list(to_bracket)
        to_layers: list[Any] = [None] * len(to_u)
        for i, (layer, hidden) in enumerate(zip(p["layers"], trace.layers, strict=True)):
            if hidden is not None:
                through, to_layers[i] = self._hidden_backward(to_bracket[i], layer, hidden)
                to_u[i] = to_bracket[i] + through
        to_coupling = None
        if trace.coupling is not None:
            coupled, to_coupling = self._coupled_backward(to_bracket, p["coupling"], trace.coupling)
            to_u = summed(to_u, coupled)
        to_z, to_scalings = _unzip(
            applied_backward(grad, s, operands)
            for grad, s, operands in zip(to_u, scalings, trace.scaled, strict=True)
        )
        return self.packing.unpack(to_z), {
            "scalings": [summed(*pair) for pair in zip(to_scalings, to_turned, strict=True)],
            "layers": to_layers,
            "coupling": to_coupling,
            "constant": None if p["constant"] is None else [over_points(grad) for grad in given],
        }

    @staticmethod
    def _hidden(u: Tensor, layer: Prepared) -> tuple[Tensor, HiddenTrace]:
        """Return the hidden layers of one group; several read, and add to, the same tensor."""
        read, forth = applied(layer["factors"], u)
        logistic, pushed = bent(read + layer["offset"].unsqueeze(-1), layer["weight"])
        found, back = applied(layer["factors"], pushed.mT, transpose=True)
        return over_heads(found, len(u)), HiddenTrace(forth, logistic, back)

    @staticmethod
    def _hidden_backward(
        grad: Tensor, layer: Prepared, trace: HiddenTrace
    ) -> tuple[Tensor, dict[str, Any]]:
        factors, terms = layer["factors"], len(trace.logistic) // len(grad)
        given = grad if terms == 1 else grad.repeat(terms, 1, 1)
        to_pushed, to_turned = applied_backward(given, factors, trace.back, transpose=True)
        to_hidden, to_rest = bent_backward(to_pushed, trace.logistic, layer["weight"])
        through, to_factors = applied_backward(to_hidden, factors, trace.forth)
        return over_heads(through, len(grad)), {"factors": summed(to_factors, to_turned), **to_rest}

    @staticmethod
    def mixed(u: list[Tensor], p: Prepared) -> tuple[Tensor, Tensor, list[Tensor], list[Operands]]:
        """Return twice the argument of the coupling's tanh, the embedding, and its parts."""
        codes, operands = _unzip(applied(e, x) for e, x in zip(p["encoders"], u, strict=True))
        embedding = torch.cat([code.flatten(0, 1) for code in codes])
        hidden = torch.addmm(p["offset"].unsqueeze(-1), p["mixing"], embedding)
        return hidden, embedding, codes, operands

    def _coupled(self, u: list[Tensor], p: Prepared) -> tuple[list[Tensor], CouplingTrace]:
        hidden, embedding, codes, forth = self.mixed(u, p)
        logistic, pushed = bent(hidden, p["weight"])
        sizes = [code.shape[0] * code.shape[1] for code in codes]
        parts = (p["mixing"].mT @ pushed).split(sizes)
        found, back = _unzip(
            applied(e, part.view(code.shape).mT, transpose=True)
            for e, part, code in zip(p["encoders"], parts, codes, strict=True)
        )
        return found, CouplingTrace(forth, sizes, embedding, logistic, pushed, back)

    @staticmethod
    def _coupled_backward(
        grads: list[Tensor], p: Prepared, trace: CouplingTrace
    ) -> tuple[list[Tensor], dict[str, Any]]:
        encoders, mixing = p["encoders"], p["mixing"]
        codes, to_turned = _unzip(
            applied_backward(grad, e, operands, transpose=True)
            for grad, e, operands in zip(grads, encoders, trace.back, strict=True)
        )
        to_codes = torch.cat([code.reshape(-1, code.shape[-1]) for code in codes])
        to_hidden, to_rest = bent_backward(mixing @ to_codes, trace.logistic, p["weight"])
        parts = (mixing.mT @ to_hidden).split(trace.sizes)
        through, to_encoders = _unzip(
            applied_backward(part, e, operands)
            for part, e, operands in zip(parts, encoders, trace.forth, strict=True)
        )
        return through, {
            "encoders": [summed(*pair) for pair in zip(to_encoders, to_turned, strict=True)],
            "mixing": torch.addmm(trace.pushed @ to_codes.mT, to_hidden, trace.embedding.mT),
            **to_rest,
        }


def _unzip(pairs: Any) -> tuple[list[Any], list[Any]]:
    first, second = zip(*pairs, strict=True)
    return list(first), list(second)
