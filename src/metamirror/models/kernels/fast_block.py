"""The whole fast block of conv4, from the passes of `conv_block` and `first_block`.

Under `torch.func.vmap` the tasks stand beside each other as groups of channels: a convolution in
groups is each task's own, and normalisation and pooling treat channels one by one anyway.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metamirror.core.normalisation import BatchNorm
from metamirror.core.outside_vmap import outside_vmap
from metamirror.models.kernels.conv_block import Convolve, NormalisedRelu, PoolAndStatistics
from metamirror.models.kernels.first_block import PoolImages

MOST_IMAGE_CHANNELS = 4
"""Up to this many channels a product with unfolded images is faster than a convolution."""


def fast_block(x: Tensor, weight: Tensor, bias: Tensor | None, norm: BatchNorm) -> Tensor:
    """Return `max_pool(relu(norm(conv(x))))`, where the bias has no effect."""
    given = norm.given()
    vectors = [norm.weight, norm.bias, *([] if bias is None else [bias])]
    vectors += [] if given is None else [statistic.flatten() for statistic in given]
    biased = bias is not None
    if torch._C._are_functorch_transforms_active():

        def run(tasks: int, axes: Sequence[int | None], stacked: Sequence[Tensor]) -> Any:
            images, *others = (
                t.expand(tasks, *t.shape) if axis is None else t.movedim(axis, 0)
                for t, axis in zip(stacked, axes, strict=True)
            )
            beside = images.movedim(0, 1).flatten(1, 2)
            out, *found = _block(
                beside, *(o.flatten(0, 1) for o in others), eps=norm.eps, biased=biased, tasks=tasks
            )
            return (out.unflatten(1, (tasks, -1)), *(f.view(tasks, -1) for f in found)), (1, 0, 0)

        out, mean, var = outside_vmap(run, x, weight, *vectors)
    else:
        out, mean, var = _block(x, weight, *vectors, eps=norm.eps, biased=biased)
    norm.note(mean.view(1, -1, 1, 1), var.view(1, -1, 1, 1))
    result: Tensor = out
    return result


def _block(
    x: Tensor, weight: Tensor, *vectors: Tensor, eps: float, biased: bool, tasks: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the block's output, with the mean and the variance by which it was normalised.

    Pooling comes first, which needs scales that are not negative: where one is, it and its filter
    change sign.
    """
    scale, shift, *others = vectors
    bias = others.pop(0) if biased else None
    negative = scale.detach() < 0
    sign: Tensor | None = None
    if negative.any():
        sign = torch.where(negative, -1.0, 1.0).to(scale.dtype)
        weight, scale = weight * sign.view(-1, 1, 1, 1), scale * sign
    pooled, mean, var = convolved_and_pooled(x, weight, tasks)
    if others:
        mean, var = others
        mean = mean if sign is None else mean * sign
    out = NormalisedRelu.apply(eps, bias, pooled, mean, var, scale, shift)  # type: ignore[no-untyped-call]
    return out, mean if sign is None else mean * sign, var


def convolved_and_pooled(x: Tensor, weight: Tensor, tasks: int = 1) -> Any:
    """Return 2x2 maxima of a 3x3 convolution, and each channel's mean and variance before."""
    if weight.shape[1] <= MOST_IMAGE_CHANNELS and not x.requires_grad:
        if tasks == 1:
            return PoolImages.apply(x, weight)  # type: ignore[no-untyped-call]
        pairs = zip(x.chunk(tasks, 1), weight.chunk(tasks), strict=True)
        each = [PoolImages.apply(*pair) for pair in pairs]  # type: ignore[no-untyped-call]
        pooled, mean, var = zip(*each, strict=True)
        return torch.cat(pooled, 1), torch.cat(mean), torch.cat(var)
    y = Convolve.apply(x, weight, tasks)  # type: ignore[no-untyped-call]
    return PoolAndStatistics.apply(y.contiguous(memory_format=torch.channels_last))  # type: ignore[no-untyped-call]
