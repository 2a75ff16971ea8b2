"""Mean and variance of each channel, in one pass over memory that keeps float32's digits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The overload itself: finding it by its arguments costs more than a small operation.
batch_statistics = torch.ops.aten.batch_norm_update_stats.default

MOST_PLACES = 1 << 15
"""Of channels-last tensors torch adds up a channel's numbers one by one: of more than so many, the
rounding errors would show."""


def channel_statistics(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel of a channels-last y."""
    pictures = max(1, MOST_PLACES // (y.shape[2] * y.shape[3]))
    if len(y) <= pictures:
        mean, var = batch_statistics(y, None, None, 0.0)
        return mean, var
    parts = y.split(pictures)
    return merged([batch_statistics(p, None, None, 0.0) for p in parts], [len(p) for p in parts])


def merged(
    statistics: Sequence[tuple[Tensor, Tensor]], sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The statistics of a whole from those of its parts, without a difference of squares."""
    if len(sizes) == 1:
        return statistics[0]
    means, variances = (torch.stack(each) for each in zip(*statistics, strict=True))
    share = (means.new_tensor(sizes) / sum(sizes)).unsqueeze(1)
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean).square())).sum(0)
