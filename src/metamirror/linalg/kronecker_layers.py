r"""Kronecker-factored layers in few operations, several tensors and several points at once.

A product takes the *last* mode of its operand and puts it *first*: $Y = F X^\top$ with X seen as
(all other modes, this mode). One matrix product does it, without a copy, whatever the mode; and
after every mode had its turn they stand in their order again. Tensors are (tensors, points,
numbers): what the points share is beside long rows of numbers, and never inside them.

A layer is a list [factors in the order of their use .., bias]; a stack of them is a list of such.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metamirror.linalg.kronecker import KroneckerLinear

Layer = list[Tensor]

DENSE = 1 << 14
"""Up to this many numbers a layer's matrices are cheaper whole: one product in place of several."""

NARROW = 16
"""Matrix products that write rows shorter than this are slow: write the transpose, then turn it."""


class Trace(NamedTuple):
    """What a layer's backward pass reads: each product's operand, and the output."""

    operands: list[Tensor]
    output: Tensor


def whole(factors: Sequence[Tensor]) -> Tensor:
    """Return the Kronecker products themselves, of stacks of factors."""
    product = factors[0]
    for f in factors[1:]:
        product = torch.einsum("gab,gcd->gacbd", product, f).reshape(
            f.shape[0], product.shape[1] * f.shape[1], product.shape[2] * f.shape[2]
        )
    return product


def merged_factors(factors: Sequence[Tensor]) -> list[Tensor]:
    """Merge factors where that is cheaper: scalars into another, small layers into one matrix.

    >>> [f.shape for f in merged_factors([torch.ones(1, 32, 64), torch.ones(1, 1, 1)])]
    [torch.Size([1, 32, 64])]
    """
    kept = [f for f in factors if f.shape[1:] != (1, 1)]
    scalars = [f for f in factors if f.shape[1:] == (1, 1)]
    if not kept:
        kept, scalars = scalars[:1], scalars[1:]
    if scalars:
        kept[0] = kept[0] * math.prod(scalars[1:], start=scalars[0])
    if len(kept) > 1 and math.prod(math.prod(f.shape[1:]) for f in kept) * len(kept[0]) <= DENSE:
        kept = [whole(kept)]
    return kept


def stacked_layer(
    groups: Sequence[Sequence[KroneckerLinear]], size: tuple[int, int] | None, rows: Tensor | None
) -> Layer:
    """Stack several modules as one layer: heads that read the same input stand in a row.

    Args:
        groups: of each group of tensors the modules that read them, one per head.
        size: (inputs, outputs) up to which zeros fill every matrix. Layers that do not come down
            to one matrix each have none, and a single group.
        rows: the order of the tensors in the stack, where it is not that of the groups.
    """
    heads: list[Layer] = []
    for linears in zip(*groups, strict=True):
        factors = [merged_factors(linear.matrices()) for linear in linears]
        biases = [linear.constant().flatten(1) for linear in linears]
        if size is not None:
            inputs, outputs = size
            matrices = [_filled(f, (inputs - f.shape[2], outputs - f.shape[1])) for (f,) in factors]
            factors = [[torch.cat(matrices)]]
            biases = [torch.cat([_filled(b, (outputs - b.shape[1],)) for b in biases])]
        layer = [*reversed(factors[0]), biases[0]]
        heads.append(layer if rows is None else [t.index_select(0, rows) for t in layer])
    return heads[0] if len(heads) == 1 else [torch.cat(t) for t in zip(*heads, strict=True)]


def _filled(tensor: Tensor, more: Sequence[int]) -> Tensor:
    """Return the tensor with so many zeros more in its last modes, the last one first."""
    padding = [n for after in more for n in (0, after)]
    return nn.functional.pad(tensor, padding) if any(padding) else tensor


def product(x: Tensor, factors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return all products of one layer, x (tensors, points, inputs) to (tensors, points, outputs).

    Returned with the operand of each. Where there are more matrices than tensors, several heads
    read each tensor.
    """
    heads, points = factors[0].shape[0] // x.shape[0], x.shape[1]
    y = x if heads == 1 else x.repeat(heads, 1, 1)
    if len(factors) == 1:
        return torch.bmm(y, factors[0].mT), [y]
    operands: list[Tensor] = []
    for f in factors:
        f = at_each(f, points)
        operands.append(y.reshape(f.shape[0], -1, f.shape[2]))
        y = torch.bmm(f, operands[-1].mT)
    return y.reshape(factors[0].shape[0], points, -1), operands


def at_each(factor: Tensor, points: int) -> Tensor:
    """Return the factors of tensors as those of (tensors x points)."""
    if points == 1:
        return factor
    return factor.unsqueeze(1).expand(-1, points, -1, -1).flatten(0, 1)


def product_backward(
    grad: Tensor, factors: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients in what was read, head by head, and in the factors."""
    points = grad.shape[1]
    if len(factors) == 1:
        # An outer product is quicker by elements.
        outer = grad.mT * operands[0] if points == 1 else torch.bmm(grad.mT, operands[0])
        return torch.bmm(grad, factors[0]), [outer]
    grads: list[Tensor] = []
    y = grad
    for factor, operand in zip(reversed(factors), reversed(operands), strict=True):
        f = at_each(factor, points)
        y = y.reshape(f.shape[0], f.shape[1], -1)
        found = torch.bmm(y, operand)
        grads.append(found if points == 1 else found.unflatten(0, (-1, points)).sum(1))
        narrow = f.shape[2] < NARROW
        y = torch.bmm(f.mT, y).mT.contiguous() if narrow else torch.bmm(y.mT, f)
    return y.reshape(factors[0].shape[0], points, -1), grads[::-1]


def run(x: Tensor, layers: Sequence[Layer], relus: Sequence[bool]) -> list[Trace]:
    """Run a stack of layers on x (tensors, points, inputs): the last trace holds the output."""
    traces: list[Trace] = []
    for (*factors, bias), relu in zip(layers, relus, strict=True):
        y, operands = product(traces[-1].output if traces else x, factors)
        y = y + bias.unsqueeze(1)
        traces.append(Trace(operands, y.relu() if relu else y))
    return traces


def run_backward(
    grad: Tensor, layers: Sequence[Layer], relus: Sequence[bool], traces: Sequence[Trace]
) -> tuple[Tensor, list[Layer]]:
    """Return the gradients in x (tensors, points, inputs) and in the layers."""
    grads: list[Layer] = []
    y = grad
    for (*factors, _), relu, (operands, output) in zip(
        reversed(layers), reversed(relus), reversed(traces), strict=True
    ):
        y = over_heads(y, len(output))
        if relu:
            y = torch.ops.aten.threshold_backward(y, output, 0)
        to_bias = over_points(y)
        y, to_factors = product_backward(y, factors, operands)
        grads.append([*to_factors, to_bias])
    return y, grads[::-1]


def over_heads(grad: Tensor, tensors: int) -> Tensor:
    """Return the sum over the heads that stand one behind the other."""
    return grad if len(grad) == tensors else grad.unflatten(0, (-1, tensors)).sum(0)


def over_points(grad: Tensor) -> Tensor:
    """Return the gradient in what all points share."""
    return grad.sum(-2) if grad.shape[-2] > 1 else grad.squeeze(-2)
