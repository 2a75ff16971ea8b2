r"""The first layer of a fused block, which reads the pictures themselves.

Its output is the largest tensor of the network, and is never held as a whole: a few pictures at a
time are unfolded into patches P, multiplied with the filters W and pooled while they are in the
cache. Since pictures have no derivative, all that the rest needs of $y = P^\top W$ are the products
$G = PP^\top$ and $s = P\mathbf 1$, which are small: with
$\partial y = c_1 + c_2 y + \mathrm{scatter}(\partial p)$,

$$\partial W = P\,\partial y = s\,c_1^\top + GW\,\mathrm{diag}(c_2) +
  P\,\mathrm{scatter}(\partial p).$$
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from metamirror.models.fused import (
    flat,
    max_pool,
    places_in_memory,
    refuse_a_third_derivative,
)
from metamirror.models.statistics import channel_statistics, merged

AT_ONCE = 1 << 19
"""Numbers of the output that are worked on at a time: about what a cache holds."""


def chunks(x: Tensor, filters: int) -> Iterator[slice]:
    """A few pictures at a time."""
    pictures = max(1, AT_ONCE // (filters * x.shape[2] * x.shape[3]))
    for start in range(0, x.shape[0], pictures):
        yield slice(start, min(start + pictures, x.shape[0]))


def patches(x: Tensor) -> Tensor:
    """(channels * 9, examples * height * width): what a filter sees at each place."""
    padded = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    return padded.permute(1, 4, 5, 0, 2, 3).reshape(x.shape[1] * 9, -1)


def as_matrix(weight: Tensor) -> Tensor:
    """(channels * 9, filters)."""
    return weight.flatten(1).t().contiguous()


class PoolPictures(Function):
    """x, weight -> (pooled, mean, variance) of the convolution, before and after pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        examples, _, height, width = x.shape
        matrix, filters = as_matrix(weight), weight.shape[0]
        pooled = x.new_empty(examples, height // 2, width // 2, filters).permute(0, 3, 1, 2)
        differentiated = ctx.needs_input_grad[1]
        products = matrix.new_zeros(len(matrix), len(matrix), dtype=torch.float64)
        sums = matrix.new_zeros(len(matrix), dtype=torch.float64)
        places, statistics, sizes = [], [], []
        for part in chunks(x, filters):
            seen = patches(x[part])
            y = (seen.t() @ matrix).view(-1, height, width, filters).permute(0, 3, 1, 2)
            pooled[part], maxima = max_pool(y, [2, 2])
            statistics.append(channel_statistics(y))
            sizes.append(len(y))
            if differentiated:
                places.append(places_in_memory(y, maxima))
                products += seen @ seen.t()
                sums += seen.sum(1)
        mean, var = merged(statistics, sizes)
        ctx.save_for_backward(x, weight, mean, products.to(x.dtype), sums.to(x.dtype), *places)
        return pooled, mean, var

    @staticmethod
    def backward(ctx: Any, by_pooled: Tensor, by_mean: Tensor, by_var: Tensor) -> Any:
        x, weight, mean, *rest = ctx.saved_tensors
        return None, PoolPicturesBackward.apply(  # type: ignore[no-untyped-call]
            by_pooled, by_mean, by_var, x, weight, mean.detach(), *rest
        )


class PoolPicturesBackward(Function):
    """The derivative in the weight, and below it the second derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        by_pooled: Tensor,
        by_mean: Tensor,
        by_var: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        products: Tensor,
        sums: Tensor,
        *places: Tensor,
    ) -> Tensor:
        examples, _, height, width = x.shape
        n, filters = examples * height * width, weight.shape[0]
        slope = by_var * (2 / n)
        constant = by_mean / n - slope * mean
        by_matrix = torch.outer(sums, constant) + (products @ as_matrix(weight)) * slope
        for part, own in zip(chunks(x, filters), places, strict=True):
            spread = x.new_zeros((part.stop - part.start) * height * width * filters)
            spread.index_add_(0, own, flat(by_pooled[part]))
            by_matrix.addmm_(patches(x[part]), spread.view(-1, filters))
        ctx.save_for_backward(x, weight, mean, products, sums, by_var, *places)
        ctx.pooled_shape = by_pooled.shape
        return by_matrix.t().reshape(weight.shape)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        refuse_a_third_derivative()
        x, weight, mean, products, sums, by_var, *places = ctx.saved_tensors
        n, filters = x.shape[0] * x.shape[2] * x.shape[3], weight.shape[0]
        matrix = as_matrix(u)
        examples, _, height, width = ctx.pooled_shape
        at_maxima = x.new_empty(examples, height, width, filters)
        for part, own in zip(chunks(x, filters), places, strict=True):
            u_y = (patches(x[part]).t() @ matrix).view(-1)
            at_maxima[part] = u_y.index_select(0, own).view(-1, height, width, filters)
        u_mean = sums @ matrix / n
        seen = products @ matrix
        u_products = (as_matrix(weight) * seen).sum(0) - n * mean * u_mean
        in_matrix = (seen - torch.outer(sums, u_mean)) * (by_var * (2 / n))
        return (
            at_maxima.permute(0, 3, 1, 2),
            u_mean,
            u_products * (2 / n),
            None,
            in_matrix.t().reshape(weight.shape),
            *[None] * (3 + len(places)),
        )
