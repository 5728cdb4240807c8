"""A vision transformer in torch (Dosovitskiy et al., 2020), with a class token and learned positions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

SMALL = {"patch": 16, "depth": 12, "heads": 6, "width": 384}
"""ViT-S/16."""
TINY = {"patch": 8, "depth": 2, "heads": 2, "width": 32}


class Block(nn.Module):
    """Pre-norm self-attention and a two-layer perceptron, each with a residual connection."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) → the same shape."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """A classifier of square RGB images.

    Args:
        size: of an image's side, a multiple of ``patch``.
        classes: number of outputs.
        patch, depth, heads, width: of the transformer.
    """

    def __init__(self, size: int, classes: int, patch: int, depth: int, heads: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, 3, size, size) → scores (batch, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
