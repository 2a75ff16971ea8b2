"""ResNet-12, the larger backbone of the few-shot literature."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.core.normalisation import BatchNorm
from metamirror.models.conv4 import check_sizes
from metamirror.models.images import as_images


class ResidualBlock(nn.Module):
    """Three 3x3 convolutions beside a 1x1 short cut, then 2x2 max-pooling."""

    def __init__(self, channels: int, filters: int):
        super().__init__()
        inputs = [channels, filters, filters]
        # No bias: the normalisation behind each convolution would remove it.
        self.convs = nn.ModuleList(nn.Conv2d(n, filters, 3, padding=1, bias=False) for n in inputs)
        self.norms = nn.ModuleList(BatchNorm(filters) for _ in inputs)
        self.shortcut = nn.Conv2d(channels, filters, 1, bias=False)
        self.shortcut_norm = BatchNorm(filters)
        for conv in (*self.convs, self.shortcut):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, x: Tensor) -> Tensor:
        residual = self.shortcut_norm(self.shortcut(x))
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x))
            x = F.leaky_relu(x if i < 2 else x + residual, 0.1)
        return F.max_pool2d(x, 2)


class ResNet12(nn.Module):
    """Four residual blocks of three convolutions, average pooling, a linear head.

    Args:
        ways: number of classes.
        channels: of the images.
        image_size: height and width of the images, at least 16.
        width: filters of the first block, doubled from block to block; or of each of the four.

    >>> import torch
    >>> ResNet12(ways=5, image_size=32, width=4)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        ways: int = 5,
        channels: int = 3,
        image_size: int = 84,
        width: int | Sequence[int] = 64,
    ):
        super().__init__()
        widths = [width * 2**i for i in range(4)] if isinstance(width, int) else list(width)
        if len(widths) != 4:
            raise ValueError(f"width has {len(widths)} entries; ResNet-12 has four blocks")
        check_sizes(ways=ways, channels=channels, width=min(widths))
        if image_size < 16:
            raise ValueError(f"image_size is {image_size}; resnet12 halves it four times: needs 16")
        sizes = {"ways": ways, "channels": channels, "image_size": image_size, "width": widths}
        self.config = {"name": "resnet12", **sizes}
        self.channels, self.image_size = channels, image_size
        inputs = [channels, *widths[:-1]]
        self.blocks = nn.Sequential(
            *(ResidualBlock(n, m) for n, m in zip(inputs, widths, strict=True))
        )
        self.head = nn.Linear(widths[-1], ways)
        self.warp_points = [f"blocks.{i}" for i in range(4)]

    def forward(self, x: Tensor) -> Tensor:
        x = as_images(x, self.channels, self.image_size, self.head.weight.dtype)
        logits: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return logits
