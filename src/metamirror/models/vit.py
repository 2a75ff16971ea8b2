"""A vision transformer (Dosovitskiy et al. 2021): patches as tokens."""

from typing import Literal

import torch
from torch import Tensor, nn

from metamirror.models.conv4 import check_sizes
from metamirror.models.images import as_images
from metamirror.models.transformer import Block, initialise

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12)}
"""Width, blocks and heads of the usual sizes; tiny has five million parameters."""


class ViT(nn.Module):
    """Patch embedding, transformer blocks with layer normalisation, a linear head.

    Args:
        ways: number of classes.
        channels: of the images.
        image_size: height and width of the images.
        size: "tiny", "small" or "base"; `width`, `depth` and `heads` replace single numbers of it.
        width: numbers of a token.
        depth: blocks.
        heads: of the attention; the width is a multiple of it.
        patch: height and width of a patch; by default the largest divisor of the image size that
            is at most 16 and leaves four patches a side.
        pool: what the head reads: a class token, or the mean of the patches.

    >>> ViT(ways=5, image_size=28, width=48, depth=2)(torch.rand(3, 3, 28, 28)).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        ways: int = 5,
        channels: int = 3,
        image_size: int = 84,
        size: Literal["tiny", "small", "base"] = "tiny",
        width: int | None = None,
        depth: int | None = None,
        heads: int | None = None,
        patch: int | None = None,
        pool: Literal["token", "mean"] = "token",
    ):
        super().__init__()
        if size not in SIZES:
            raise ValueError(f"size is {size!r}; choose from {', '.join(SIZES)}")
        if pool not in ("token", "mean"):
            raise ValueError(f"pool is {pool!r}; choose 'token' or 'mean'")
        given = (width, depth, heads)
        width, depth, heads = (
            usual if n is None else n for n, usual in zip(given, SIZES[size], strict=True)
        )
        check_sizes(ways=ways, channels=channels, image_size=image_size)
        check_sizes(width=width, depth=depth, heads=heads)
        if width % heads:
            raise ValueError(f"width is {width}; it must be a multiple of heads, {heads}")
        if patch is None:
            most = max(1, min(16, image_size // 4))
            patch = max(p for p in range(1, most + 1) if image_size % p == 0)
        if patch < 1 or image_size % patch:
            raise ValueError(f"patch is {patch}; it must divide image_size, {image_size}")
        sizes = {"ways": ways, "channels": channels, "image_size": image_size, "width": width}
        sizes |= {"depth": depth, "heads": heads, "patch": patch}
        self.config = {"name": "vit", **sizes, "pool": pool}
        self.channels, self.image_size, self.patch, self.pool = channels, image_size, patch, pool
        self.embedding = nn.Linear(channels * patch**2, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if pool == "token" else None
        tokens = (image_size // patch) ** 2 + (pool == "token")
        self.positions = nn.Parameter(torch.empty(1, tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads, 4 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, ways)
        initialise(self)
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.warp_points = [f"blocks.{i}" for i in range(depth)]

    def forward(self, x: Tensor) -> Tensor:
        x = as_images(x, self.channels, self.image_size, self.head.weight.dtype)
        side, p = self.image_size // self.patch, self.patch
        patches = x.unflatten(3, (side, p)).unflatten(2, (side, p)).permute(0, 2, 4, 1, 3, 5)
        x = self.embedding(patches.flatten(3).flatten(1, 2))
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = self.norm(self.blocks(x + self.positions))
        logits: Tensor = self.head(x[:, 0] if self.token is not None else x.mean(1))
        return logits
