r"""The first layer of a fast block, which reads the images themselves.

Its output is the largest tensor of the network, and is never held as a whole: a few images at a
time are unfolded into patches P, multiplied with the filters W and pooled while they are in the
cache. Since images have no derivative, all that the rest needs of $y = P^\top W$ are the mean
patch c and the products of centred patches $G = (P - c)(P - c)^\top$, which are small: with n
places,

$$\mathrm{mean}(y) = c^\top W, \qquad n\,\mathrm{var}(y) = \mathrm{diag}(W^\top G W).$$
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from metamirror.models.kernels.conv_block import (
    channel_statistics,
    flat,
    max_pool,
    places_in_memory,
    refuse_a_third_derivative,
)

AT_ONCE = 1 << 19
"""Numbers of the output that are worked on at a time: about what a cache holds."""


def chunks(x: Tensor, filters: int) -> Iterator[slice]:
    """Yield a few images at a time."""
    images = max(1, AT_ONCE // (filters * x.shape[2] * x.shape[3]))
    for start in range(0, x.shape[0], images):
        yield slice(start, min(start + images, x.shape[0]))


def patches(x: Tensor) -> Tensor:
    """Return what a filter sees at each place, (channels * 9, examples * height * width)."""
    padded = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    return padded.permute(1, 4, 5, 0, 2, 3).reshape(x.shape[1] * 9, -1)


def as_matrix(weight: Tensor) -> Tensor:
    """Return the weight as a matrix (channels * 9, filters)."""
    return weight.flatten(1).t().contiguous()


class Summary(NamedTuple):
    """What the rest needs to know of the images; the last three where derivatives are wanted."""

    mean: Tensor
    var: Tensor
    centre: Tensor | None = None
    products: Tensor | None = None
    places: Sequence[Tensor] = ()


def _pool_part(x: Tensor, matrix: Tensor, differentiated: bool) -> tuple[Tensor, Summary]:
    seen = patches(x)
    y = (seen.t() @ matrix).view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)
    mean, var = channel_statistics(y)
    pooled, maxima = max_pool(y, [2, 2])
    if not differentiated:
        return pooled, Summary(mean, var)
    centre = seen.mean(1)
    # Centred before they are multiplied: a difference of large numbers would lose its digits.
    seen -= centre.unsqueeze(1)
    places = [places_in_memory(y, maxima)]
    return pooled, Summary(mean, var, centre, seen @ seen.t(), places)


def _together(parts: Sequence[Summary], sizes: Sequence[int], area: int) -> Summary:
    """Return the summary of all images, from those of parts; sizes are numbers of images."""
    means, variances, centres, products, places = zip(*parts, strict=True)
    share = (means[0].new_tensor(sizes) / sum(sizes)).unsqueeze(1)
    mean = (share * torch.stack(means)).sum(0)
    # Not as a difference of squares, which would lose digits.
    between = (torch.stack(means) - mean).square()
    var = (share * (torch.stack(variances) + between)).sum(0)
    if centres[0] is None:
        return Summary(mean, var)
    counts = mean.new_tensor(sizes, dtype=torch.float64) * area
    each = torch.stack(centres).double()
    centre = counts @ each / counts.sum()
    apart = each - centre
    total = torch.stack(products).sum(0, dtype=torch.float64) + (apart.t() * counts) @ apart
    every = [own for part in places for own in part]
    return Summary(mean, var, centre.to(mean.dtype), total.to(mean.dtype), every)


class PoolImages(Function):
    """x, weight -> (pooled, mean, variance) of the convolution, before and after pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        matrix, filters = as_matrix(weight), weight.shape[0]
        differentiated, slices = ctx.needs_input_grad[1], list(chunks(x, filters))
        if len(slices) == 1:
            pooled, summary = _pool_part(x, matrix, differentiated)
        else:
            examples, _, height, width = x.shape
            pooled = x.new_empty(examples, height // 2, width // 2, filters).permute(0, 3, 1, 2)
            summaries = []
            for part in slices:
                pooled[part], found = _pool_part(x[part], matrix, differentiated)
                summaries.append(found)
            sizes = [part.stop - part.start for part in slices]
            summary = _together(summaries, sizes, height * width)
        mean, var, centre, products, places = summary
        ctx.save_for_backward(x, weight, centre, products, *places)
        return pooled, mean, var

    @staticmethod
    def backward(ctx: Any, by_pooled: Tensor, by_mean: Tensor, by_var: Tensor) -> Any:
        return None, PoolImagesBackward.apply(  # type: ignore[no-untyped-call]
            by_pooled, by_mean, by_var, *ctx.saved_tensors
        )


class PoolImagesBackward(Function):
    """The derivative in the weight, and below it the second derivatives."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        by_pooled, by_mean, by_var, x, weight, centre, products, *places = given
        examples, _, height, width = x.shape
        n, filters = examples * height * width, weight.shape[0]
        by_matrix = torch.outer(centre, by_mean)
        by_matrix.addcmul_(products @ as_matrix(weight), by_var, value=2 / n)
        for part, own in zip(chunks(x, filters), places, strict=True):
            spread = x.new_zeros((part.stop - part.start) * height * width * filters)
            spread.index_add_(0, own, flat(by_pooled[part]))
            by_matrix.addmm_(patches(x[part]), spread.view(-1, filters))
        ctx.save_for_backward(x, weight, centre, products, by_var, *places)
        ctx.pooled_shape = by_pooled.shape
        return by_matrix.t().reshape(weight.shape)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        refuse_a_third_derivative()
        x, weight, centre, products, by_var, *places = ctx.saved_tensors
        n, filters = x.shape[0] * x.shape[2] * x.shape[3], weight.shape[0]
        matrix = as_matrix(u)
        examples, _, height, width = ctx.pooled_shape
        at_maxima = x.new_empty(examples, height, width, filters)
        for part, own in zip(chunks(x, filters), places, strict=True):
            u_y = (patches(x[part]).t() @ matrix).view(-1)
            at_maxima[part] = u_y.index_select(0, own).view(-1, height, width, filters)
        seen = products @ matrix
        in_matrix = seen * (by_var * (2 / n))
        return (
            at_maxima.permute(0, 3, 1, 2),
            centre @ matrix,
            (as_matrix(weight) * seen).sum(0) * (2 / n),
            None,
            in_matrix.t().reshape(weight.shape),
            *[None] * (2 + len(places)),
        )
