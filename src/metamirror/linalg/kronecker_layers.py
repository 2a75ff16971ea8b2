r"""Kronecker-factored layers in few operations, several tensors and several points at once.

A product takes the *last* mode of its operand and puts it *first*: $Y = F X^\top$ with X seen as
(all other modes, this mode). One matrix product does it, without a copy, whatever the mode; and
after every mode had its turn they stand in their order again. The points, in front of the modes
before a layer, are behind them after it.

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
    """Return all products of one layer, x (tensors, points, inputs) to (tensors, outputs, points).

    Returned with the operand of each. Where there are more matrices than tensors, several heads
    read each tensor.
    """
    heads = factors[0].shape[0] // x.shape[0]
    y = x if heads == 1 else x.repeat(heads, 1, 1)
    operands: list[Tensor] = []
    for f in factors:
        operands.append(y.reshape(f.shape[0], -1, f.shape[2]))
        y = torch.bmm(f, operands[-1].mT)
    return y, operands


def product_backward(
    grad: Tensor, factors: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients in what was read, head by head, and in the factors."""
    grads: list[Tensor] = []
    y = grad
    for i in reversed(range(len(factors))):
        f, operand = factors[i], operands[i]
        y = y.reshape(f.shape[0], f.shape[1], -1)
        # An outer product is quicker by elements.
        grads.append(y * operand if operand.shape[1] == 1 else torch.bmm(y, operand))
        narrow = f.shape[2] < NARROW
        y = torch.bmm(f.mT, y).mT.contiguous() if narrow else torch.bmm(y.mT, f)
    return y, grads[::-1]


def run(x: Tensor, layers: Sequence[Layer], relus: Sequence[bool]) -> list[Trace]:
    """Run a stack of layers on x (tensors, points, inputs): the last trace holds the output."""
    points = x.shape[1]
    traces: list[Trace] = []
    for (*factors, bias), relu in zip(layers, relus, strict=True):
        y, operands = product(traces[-1].output.mT if traces else x, factors)
        y = y.reshape(*bias.shape, points) + bias.unsqueeze(-1)
        traces.append(Trace(operands, y.relu() if relu else y))
    return traces


def run_backward(
    grad: Tensor, layers: Sequence[Layer], relus: Sequence[bool], traces: Sequence[Trace]
) -> tuple[Tensor, list[Layer]]:
    """Return the gradients in x (tensors, points, inputs) and in the layers."""
    points = grad.shape[-1]
    grads: list[Layer] = []
    y = grad
    for i in reversed(range(len(layers))):
        *factors, bias = layers[i]
        operands, output = traces[i]
        if i + 1 < len(layers):
            # What a layer read is the transpose of what the one before it wrote.
            y = over_heads(y, len(output)).view(len(output), points, -1).mT.reshape(output.shape)
        if relus[i]:
            y = torch.ops.aten.threshold_backward(y, output, 0)
        to_bias = y.sum(-1) if points > 1 else y.reshape(bias.shape)
        y, to_factors = product_backward(y, factors, operands)
        grads.append([*to_factors, to_bias])
    return y, grads[::-1]


def over_heads(grad: Tensor, tensors: int) -> Tensor:
    """Return the sum over the heads that stand one behind the other."""
    return grad if len(grad) == tensors else grad.unflatten(0, (-1, tensors)).sum(0)


def over_points(grad: Tensor) -> Tensor:
    """Return the gradient in what all points share."""
    return grad.sum(-1) if grad.shape[-1] > 1 else grad.squeeze(-1)
