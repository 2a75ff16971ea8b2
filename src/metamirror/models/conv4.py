"""The four-layer convolutional network of Vinyals et al. (2016), the paper's model."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.core.normalisation import BatchNorm
from metamirror.core.outside_vmap import only_vmap
from metamirror.models.images import as_images
from metamirror.models.kernels.fast_block import fast_block


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
    """3x3 convolution, batch normalisation, ReLU, 2x2 max-pooling.

    `fast` uses `models.kernels` where they apply: same results, faster. They can be differentiated
    twice, the plain formula as often as one likes.
    """

    def __init__(self, channels: int, filters: int, *, fast: bool = True):
        super().__init__()
        self.conv = Convolution(channels, filters, 3, padding=1)
        self.norm = BatchNorm(filters)
        self.fast = fast
        nn.init.xavier_uniform_(self.conv.weight)
        if self.conv.bias is not None:
            nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.fast and self._fast_applies(x):
            return fast_block(x, self.conv.weight, self.conv.bias, self.norm)
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)

    def _fast_applies(self, x: Tensor) -> bool:
        # On a GPU it was never measured; of torch.func's transforms it knows vmap alone; compilers
        # and exporters want plain operations; a part that was replaced, or that has hooks, has to
        # be called.
        return (
            x.device.type == "cpu"
            and x.dtype in (torch.float32, torch.float64)
            and x.shape[0] > 0
            and only_vmap()
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
            and _untouched(self.conv, Convolution)
            and _untouched(self.norm, BatchNorm)
        )


def _untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(module) is kind and not any(getattr(module, hooks) for hooks in kinds)


class Conv4(nn.Module):
    """Four blocks of 3x3 convolutions and a linear head.

    Args:
        ways: number of classes.
        channels: of the images.
        image_size: height and width of the images, at least 16.
        width: filters of each layer; the paper's is 64.
        fast: use the fast passes of `models.kernels`; see `ConvBlock`.

    >>> import torch
    >>> Conv4(ways=5, channels=1, image_size=28)(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        ways: int = 5,
        channels: int = 3,
        image_size: int = 84,
        width: int = 64,
        *,
        fast: bool = True,
    ):
        super().__init__()
        check_sizes(ways=ways, channels=channels, width=width)
        if image_size < 16:
            raise ValueError(f"image_size is {image_size}; conv4 halves it four times and needs 16")
        sizes = {"ways": ways, "channels": channels, "image_size": image_size, "width": width}
        self.config = {"name": "conv4", **sizes}
        self.channels, self.image_size = channels, image_size
        inputs = [channels, width, width, width]
        self.blocks = nn.Sequential(*(ConvBlock(n, width, fast=fast) for n in inputs))
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
