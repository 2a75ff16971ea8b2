"""The block that the image and the text transformer share."""

from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with several heads: softmax(Q K' / sqrt(d)) V, and a linear map behind it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (examples, tokens, width); `mask` is true where a token may be looked at."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output: Tensor = self.out(found.transpose(-3, -2).flatten(-2))
        return output


class Block(nn.Module):
    """Attention, then a two-layer network: each behind a normalisation, beside a short cut."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.second_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm(x), mask)
        output: Tensor = x + self.mlp(self.second_norm(x))
        return output


def initialise(model: nn.Module) -> None:
    """Draw the weights from a truncated normal of width 0.02, as is usual for a ViT."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
