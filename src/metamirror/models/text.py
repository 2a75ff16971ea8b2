"""A small transformer over texts, given as whole numbers, one per token."""

import torch
from torch import Tensor, nn

from metamirror.models.conv4 import check_sizes
from metamirror.models.transformer import Block, initialise


class TextTransformer(nn.Module):
    """Token embedding, transformer blocks with layer normalisation, the mean, a linear head.

    A text is a row of tokens from 1 on; 0 fills it up, and changes nothing.

    Args:
        ways: number of classes, or the dimension of a regression target.
        vocabulary: tokens run from 0 to this, exclusively; 256 serves bytes.
        length: tokens of the longest text; shorter ones are taken as they are.
        width: numbers of a token.
        depth: blocks.
        heads: of the attention; the width is a multiple of it.

    >>> model = TextTransformer(ways=3, vocabulary=50, length=8)
    >>> short, filled = torch.tensor([[7, 9, 2]]), torch.tensor([[7, 9, 2, 0, 0]])
    >>> torch.allclose(model(short), model(filled), atol=1e-6)
    True
    """

    def __init__(
        self,
        ways: int = 5,
        vocabulary: int = 256,
        length: int = 256,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
    ):
        super().__init__()
        check_sizes(ways=ways, vocabulary=vocabulary, length=length)
        check_sizes(width=width, depth=depth, heads=heads)
        if width % heads:
            raise ValueError(f"width is {width}; it must be a multiple of heads, {heads}")
        sizes = {"ways": ways, "vocabulary": vocabulary, "length": length, "width": width}
        self.config = {"name": "text", **sizes, "depth": depth, "heads": heads}
        self.vocabulary, self.length = vocabulary, length
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(1, length, width))
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, ways)
        initialise(self)
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.warp_points = [f"blocks.{i}" for i in range(depth)]

    def forward(self, tokens: Tensor) -> Tensor:
        self._check(tokens)
        tokens = tokens.long()
        there = tokens != 0
        # A text without a token may look everywhere: a softmax over nothing is not a number.
        seen = there | ~there.any(1, keepdim=True)
        x = self.embedding(tokens) + self.positions[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, seen[:, None, None, :])
        weights = seen.unsqueeze(-1).to(x.dtype)
        logits: Tensor = self.head((self.norm(x) * weights).sum(1) / weights.sum(1))
        return logits

    def _check(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.shape[1] > self.length:
            raise ValueError(
                f"texts have shape {tuple(tokens.shape)} and type {tokens.dtype}; this model takes "
                f"whole numbers (examples, tokens), at most {self.length} tokens"
            )
        # Values cannot be looked at inside a transform, nor without waiting on a GPU.
        if tokens.device.type == "cpu" and not torch._C._are_functorch_transforms_active():
            largest = int(tokens.max()) if tokens.numel() else 0
            if largest >= self.vocabulary or (tokens.numel() and int(tokens.min()) < 0):
                raise ValueError(
                    f"a token is {largest if largest >= self.vocabulary else int(tokens.min())}; "
                    f"they run from 0 to {self.vocabulary - 1}: build the model with a larger "
                    f"vocabulary"
                )
