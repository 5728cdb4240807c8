"""GPT-2 in torch: pre-norm transformer blocks, learned positions, tied embedding and output weights.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. No dropout, as is usual in speed
comparisons.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

SMALL = {"depth": 12, "heads": 12, "width": 768}
TINY = {"depth": 2, "heads": 2, "width": 32}


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each with a residual connection."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) → the same shape."""
        x = x + self.out(self._attend(self.qkv(self.norm1(x))))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def _attend(self, qkv: torch.Tensor) -> torch.Tensor:
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, length, -1)


class Gpt2(nn.Module):
    """A language model.

    Args:
        vocabulary: number of tokens.
        length: of the longest sequence.
        depth, heads, width: of the blocks.
    """

    def __init__(self, vocabulary: int, length: int, depth: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = (2 * depth) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) of int64 → logits (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))
