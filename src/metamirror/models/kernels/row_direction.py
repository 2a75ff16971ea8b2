r"""Rows centred, weighted and brought to one length, in few passes over memory.

With $u = (x - c) \circ w$ a row becomes $y = \ell\, u / |u|$, and for a gradient g in y

$$h = \frac{\ell}{|u|} \Big(g - \frac{u}{|u|} \Big\langle \frac{u}{|u|}, g \Big\rangle\Big), \qquad
  \partial c = -w \circ \sum h, \quad \partial w = \sum h \circ (x - c).$$

The rows are taken in blocks that fit a core's cache.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1 << 17
"""Numbers of a block."""

SMALLEST = 1e-12
"""The least length that a row is divided by, as in `torch.nn.functional.normalize`."""


class RowTrace(NamedTuple):
    """What the backward pass reads: inputs, outputs, and the lengths of rows."""

    x: Tensor
    y: Tensor
    sizes: Tensor


class RowDirection:
    """The pass of rows (points, rows x numbers), and its derivative, for `one_operation`.

    Args:
        length: of the rows that are returned.
        constant: whether the rows themselves need no gradient.
    """

    def __init__(self, length: float, *, constant: bool):
        self.length, self.constant = length, constant

    def forward_pass(
        self, z: list[Tensor], prepared: dict[str, Tensor]
    ) -> tuple[list[Tensor], RowTrace]:
        """Return the rows, and what the backward pass reads."""
        centre, weights = prepared["centre"], prepared["weights"]
        x = z[0].reshape(-1, len(centre))
        if torch.is_grad_enabled():
            # Recorded operation by operation: nothing is written in place.
            u = (x - centre) * weights
            sizes = torch.linalg.vector_norm(u, dim=1, keepdim=True).clamp_min(SMALLEST)
            return [(self.length / sizes * u).reshape(z[0].shape)], RowTrace(x, u, sizes)
        y, sizes = torch.empty_like(x), x.new_empty(len(x), 1)
        for rows in blocks(x):
            part = torch.sub(x[rows], centre, out=y[rows]).mul_(weights)
            torch.linalg.vector_norm(part, dim=1, keepdim=True, out=sizes[rows])
            part.mul_(self.length / sizes[rows].clamp_min(SMALLEST))
        return [y.reshape(z[0].shape)], RowTrace(x, y, sizes)

    def backward_pass(
        self, grads: list[Tensor], prepared: dict[str, Tensor], trace: RowTrace
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        """Return the gradients in the rows, unless they are constant, in centre and weights."""
        centre, weights = prepared["centre"], prepared["weights"]
        grad = grads[0].reshape(trace.x.shape)
        to_x = None if self.constant else torch.empty_like(trace.x)
        to_sum, to_weights = torch.zeros_like(centre), torch.zeros_like(weights)
        for rows in blocks(trace.x):
            g, y, sizes = grad[rows], trace.y[rows], trace.sizes[rows]
            along = torch.linalg.vecdot(g, y).unsqueeze(1)
            # A row shorter than the least length is multiplied by a constant.
            along = torch.where(sizes > SMALLEST, along / self.length**2, 0)
            h = torch.addcmul(g, y, along, value=-1).mul_(self.length / sizes.clamp_min(SMALLEST))
            to_sum += h.sum(0)
            if to_x is not None:
                torch.mul(h, weights, out=to_x[rows])
            to_weights += (trace.x[rows] - centre).mul_(h).sum(0)
        found = None if to_x is None else to_x.reshape(grads[0].shape)
        return [found], {"centre": -weights * to_sum, "weights": to_weights}


def blocks(x: Tensor) -> Iterator[slice]:
    """Yield the rows of a matrix, some at a time."""
    step = max(1, BLOCK // x.shape[1])
    for first in range(0, len(x), step):
        yield slice(first, first + step)
