"""The four-layer convolutional network of Vinyals et al. (2016), the paper's model."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.core.normalisation import BatchNorm
from metamirror.models.images import as_images
from metamirror.models.kernels.conv_block import Convolve, PoolAndStatistics, normalised_relu
from metamirror.models.kernels.first_block import PoolPictures

MOST_CHANNELS_OF_PICTURES = 4
"""Up to this many channels a product with unfolded pictures is faster than a convolution."""


class Convolution(nn.Conv2d):
    """A convolution whose bias does not act, since the normalisation behind it would remove it.

    The derivative in it is then exactly zero, not a rounding error that Adam makes a step of.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.bias is not None:
            # A derivative that is zero, rather than none at all.
            weight = weight + 0.0 * self.bias.view(-1, 1, 1, 1)
        return F.conv2d(x, weight, None, self.stride, self.padding)


class ConvBlock(nn.Module):
    """3x3 convolution, batch normalisation, ReLU, 2x2 max-pooling."""

    fused: bool = True
    """Whether to use `models.kernels.conv_block` where it applies. Same results, faster; it can
    be differentiated twice, the plain formula as often as one likes."""

    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.conv = Convolution(channels, filters, 3, padding=1)
        self.norm = BatchNorm(filters)
        nn.init.xavier_uniform_(self.conv.weight)
        if self.conv.bias is not None:
            nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused and self._can_fuse(x):
            return self._fused(x)
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)

    def _can_fuse(self, x: Tensor) -> bool:
        # On a GPU it was never measured; torch.func has no rule for it; compilers and exporters
        # want plain operations; a part that was replaced, or that someone listens to, has to be
        # called.
        return (
            x.device.type == "cpu"
            and x.dtype in (torch.float32, torch.float64)
            and x.shape[0] > 0
            and not torch._C._are_functorch_transforms_active()
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
            and _untouched(self.conv, Convolution)
            and _untouched(self.norm, BatchNorm)
        )

    def _fused(self, x: Tensor) -> Tensor:
        weight: Tensor = self.conv.weight
        scale: Tensor = self.norm.weight
        shift: Tensor = self.norm.bias
        negative = scale.detach() < 0
        sign: Tensor | None = None
        if negative.any():
            sign = torch.where(negative, -1.0, 1.0).to(scale.dtype)
            weight, scale = weight * sign.view(-1, 1, 1, 1), scale * sign
        pooled, mean, var = convolved_and_pooled(x, weight)
        given = self.norm.given()
        if given is not None:
            mean, var = (statistic.flatten() for statistic in given)
            mean = mean if sign is None else mean * sign
        true_mean = mean if sign is None else mean * sign
        self.norm.note(true_mean.view(1, -1, 1, 1), var.view(1, -1, 1, 1))
        return normalised_relu(pooled, mean, var, scale, shift, self.norm.eps, self.conv.bias)


def convolved_and_pooled(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """2x2 maxima of a 3x3 convolution, and the mean and variance of each channel before pooling."""
    if x.shape[1] <= MOST_CHANNELS_OF_PICTURES and not x.requires_grad:
        pooled, mean, var = PoolPictures.apply(x, weight)  # type: ignore[no-untyped-call]
    else:
        y = Convolve.apply(x, weight)  # type: ignore[no-untyped-call]
        y = y.contiguous(memory_format=torch.channels_last)
        pooled, mean, var = PoolAndStatistics.apply(y)  # type: ignore[no-untyped-call]
    return pooled, mean, var


def _untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    listened_to = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
    return type(module) is kind and not listened_to


class Conv4(nn.Module):
    """Four blocks of 3x3 convolutions and a linear head.

    Args:
        ways: number of classes.
        channels: of the pictures.
        image_size: height and width of the pictures, at least 16.
        width: filters of each layer; the paper's is 64.

    >>> import torch
    >>> Conv4(ways=5, channels=1, image_size=28)(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 5])
    """

    def __init__(self, ways: int = 5, channels: int = 3, image_size: int = 84, width: int = 64):
        super().__init__()
        check_sizes(ways=ways, channels=channels, width=width)
        if image_size < 16:
            raise ValueError(f"image_size is {image_size}; conv4 halves it four times and needs 16")
        self.config = {
            "name": "conv4",
            "ways": ways,
            "channels": channels,
            "image_size": image_size,
            "width": width,
        }
        self.channels, self.image_size = channels, image_size
        inputs = [channels, width, width, width]
        self.blocks = nn.Sequential(
            OrderedDict((f"{i}", ConvBlock(n, width)) for i, n in enumerate(inputs))
        )
        positions = (image_size // 16) ** 2
        self.head = nn.Linear(width * positions, ways)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # The head reads a feature map: its weight is a tensor of three modes, stored as a matrix.
        self.modes = {"head.weight": (ways, width, positions)}
        self.warp_points = [f"blocks.{i}" for i in range(4)]

    def forward(self, x: Tensor) -> Tensor:
        x = as_images(x, self.channels, self.image_size, self.head.weight.dtype)
        logits: Tensor = self.head(self.blocks(x).flatten(1))
        return logits


def check_sizes(**sizes: int) -> None:
    """Refuse sizes below one, by name."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
