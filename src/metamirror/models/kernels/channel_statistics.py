"""Mean and variance of each channel, in one pass over memory that keeps float32's digits."""

from collections.abc import Sequence

import torch
from torch import Tensor

# The overload itself: finding it by its arguments costs more than a small operation.
batch_statistics = torch.ops.aten.batch_norm_update_stats.default

MOST_PLACES = 1 << 10
"""That are added up one by one. torch does so for a channel of a channels-last tensor, and rounds
each time: of ten thousand equal squares (an image's ground) the fourth digit is wrong, and with it
the maxima and ReLUs that are nearly ties."""


def channel_statistics(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel of a channels-last y."""
    images, channels, height, width = y.shape
    if images * height * width <= MOST_PLACES:
        mean, var = batch_statistics(y, None, None, 0.0)
        return mean, var
    # Each place of a few rows is a channel of its own; those of one channel are then put together.
    rows = next(d for d in range(1, height + 1) if _is_enough(d, images, height))
    apart = y.permute(0, 2, 3, 1).reshape(-1, rows * width * channels, 1, 1)
    means, variances = (
        each.view(-1, channels) for each in batch_statistics(apart, None, None, 0.0)
    )
    mean = means.mean(0)
    distance = means - mean
    return mean, torch.addcmul(variances, distance, distance).mean(0)


def _is_enough(rows: int, images: int, height: int) -> bool:
    if height % rows:
        return False
    return rows == height or images * height // rows <= MOST_PLACES


def merged(
    statistics: Sequence[tuple[Tensor, Tensor]], sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the statistics of a whole from those of its parts, without a difference of squares."""
    if len(sizes) == 1:
        return statistics[0]
    means, variances = (torch.stack(each) for each in zip(*statistics, strict=True))
    share = (means.new_tensor(sizes) / sum(sizes)).unsqueeze(1)
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean).square())).sum(0)
