"""The models and data of the float8 benchmark: transformer blocks over tokens of a Markov chain."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

import unifiedamp as ua


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and its batches."""

    width: int = 4096
    heads: int = 32
    blocks: int = 4
    length: int = 2048
    batch: int = 4
    tokens: int = 512
    model: str = "gpt"


LLAMA = Sizes(length=8192, batch=1, model="llama")
"""Blocks with the shapes of Llama-3-8B."""
EXPERTS = Sizes(length=8192, batch=1, blocks=1, model="experts")
"""A block with the shapes of Mixtral-8x7B."""
SMOKE = Sizes(width=64, heads=4, blocks=2, length=32, batch=4, tokens=32)


class Block(nn.Module):
    """Pre-norm attention and a feed-forward network of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) → the same shape."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gated(nn.Module):
    """A gated feed-forward network of 3.5 times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width * 7 // 2
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) → the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Eight gated feed-forward networks of 3.5 times the width, of which each token uses two."""

    COUNT, USED = 8, 2

    def __init__(self, width: int) -> None:
        super().__init__()
        shape = self.COUNT, width * 7 // 2, width
        self.router = nn.Linear(width, self.COUNT, bias=False)
        self.gate, self.up, self.down = (nn.Parameter(0.02 * torch.randn(shape)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) → the same shape."""
        rows = x.flatten(0, 1)
        shares, chosen = self.router(rows).float().softmax(-1).topk(self.USED)
        order = chosen.flatten().argsort(stable=True)
        experts = torch.arange(self.COUNT, device=x.device)
        ends = (chosen.flatten()[:, None] == experts).sum(0).cumsum(0).to(torch.int32)
        sent = rows[order // self.USED].bfloat16()
        gate, up, down = (weight.bfloat16() for weight in (self.gate, self.up, self.down))
        hidden = F.silu(F.grouped_mm(sent, gate.mT, offs=ends)) * F.grouped_mm(sent, up.mT, offs=ends)
        out = F.grouped_mm(hidden, down, offs=ends) * shares.flatten()[order][:, None]
        return torch.zeros_like(rows, dtype=out.dtype).index_add(0, order // self.USED, out).view(x.shape)


class LlamaBlock(nn.Module):
    """RMSNorm, attention with a quarter of the key and value heads, and a feed-forward network, without biases."""

    def __init__(self, width: int, heads: int, feed_forward: Callable[[int], nn.Module] = Gated) -> None:
        super().__init__()
        few = width // 4

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.proj = (
            linear(width, width),
            linear(width, few),
            linear(width, few),
            linear(width, width),
        )
        self.feed_forward = feed_forward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) → the same shape."""
        size = x.shape[-1] // self.heads
        low = self.norm1(x)
        q, k, v = (part(low).unflatten(-1, (-1, size)).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.proj(seen.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm2(x))


BLOCKS: dict[str, Callable[[int, int], nn.Module]] = {
    "gpt": Block,
    "llama": LlamaBlock,
    "experts": functools.partial(LlamaBlock, feed_forward=Experts),
}


class Stack(nn.Module):
    """Embedding, blocks and head; returns logits of the next token."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.tokens, sizes.width)
        self.place = nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.Sequential(*[BLOCKS[sizes.model](sizes.width, sizes.heads) for _ in range(sizes.blocks)])
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.tokens)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (batch, length) → logits (batch, length, tokens)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.embed(tokens) + self.place(places))))


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the next token."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def training_step(amp: ua.Amp, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """Return a step on tokens and next tokens, of prepared objects; it returns the loss."""

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with amp.autocast():
            loss = loss_fn(model(tokens), targets)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    return step


class Chain:
    """A Markov chain in which each token has four equally likely successors, so the lowest possible loss is log 4.

    Args:
        sizes: sizes of the batches.
        seed: seed of the successors and of all batches.
    """

    def __init__(self, sizes: Sizes, seed: int = 0) -> None:
        self._sizes, self._rng = sizes, np.random.default_rng(seed)
        self._successors = self._rng.integers(0, sizes.tokens, (sizes.tokens, 4))

    def batch(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return tokens and next tokens, each (batch, length)."""
        sizes = self._sizes
        found = np.empty((sizes.batch, sizes.length + 1), np.int64)
        found[:, 0] = self._rng.integers(0, sizes.tokens, sizes.batch)
        choices = self._rng.integers(0, 4, (sizes.length, sizes.batch))
        for place, choice in enumerate(choices):
            found[:, place + 1] = self._successors[found[:, place], choice]
        return np.ascontiguousarray(found[:, :-1]), np.ascontiguousarray(found[:, 1:])
