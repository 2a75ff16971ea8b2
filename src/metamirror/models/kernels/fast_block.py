"""The whole fast block of conv4, from the passes of `conv_block` and `first_block`."""

import torch
from torch import Tensor

from metamirror.core.normalisation import BatchNorm
from metamirror.models.kernels.conv_block import Convolve, NormalisedRelu, PoolAndStatistics
from metamirror.models.kernels.first_block import PoolImages

MOST_IMAGE_CHANNELS = 4
"""Up to this many channels a product with unfolded images is faster than a convolution."""


def fast_block(x: Tensor, weight: Tensor, bias: Tensor | None, norm: BatchNorm) -> Tensor:
    """Return `max_pool(relu(norm(conv(x))))`, where the bias has no effect.

    Pooling comes first, which needs scales that are not negative: where one is, it and its filter
    change sign.
    """
    scale: Tensor = norm.weight
    negative = scale.detach() < 0
    sign: Tensor | None = None
    if negative.any():
        sign = torch.where(negative, -1.0, 1.0).to(scale.dtype)
        weight, scale = weight * sign.view(-1, 1, 1, 1), scale * sign
    pooled, mean, var = convolved_and_pooled(x, weight)
    given = norm.given()
    if given is not None:
        mean, var = (statistic.flatten() for statistic in given)
        mean = mean if sign is None else mean * sign
    true_mean = mean if sign is None else mean * sign
    norm.note(true_mean.view(1, -1, 1, 1), var.view(1, -1, 1, 1))
    out: Tensor = NormalisedRelu.apply(norm.eps, bias, pooled, mean, var, scale, norm.bias)  # type: ignore[no-untyped-call]
    return out


def convolved_and_pooled(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return 2x2 maxima of a 3x3 convolution, and each channel's mean and variance before."""
    if x.shape[1] <= MOST_IMAGE_CHANNELS and not x.requires_grad:
        pooled, mean, var = PoolImages.apply(x, weight)  # type: ignore[no-untyped-call]
    else:
        y = Convolve.apply(x, weight)  # type: ignore[no-untyped-call]
        y = y.contiguous(memory_format=torch.channels_last)
        pooled, mean, var = PoolAndStatistics.apply(y)  # type: ignore[no-untyped-call]
    return pooled, mean, var
