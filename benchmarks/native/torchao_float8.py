"""torchao: its float8 linear layers under ``torch.autocast`` in bfloat16, with ``torch.compile`` and fused AdamW."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from blocks import Sizes, Stack, loss_fn

from .torch_amp import DEVICE, scope

RECIPES = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise_gw_hp": "rowwise_with_gw_hp"}
"""Recipe of ``mixed_float8`` → torchao's name; it has no others."""
KEPT = "head"
"""The layer that stays in bfloat16, as in the session that is compared."""


def training_step(
    recipe: str, sizes: Sizes, lr: float, *, compiled: bool, emulate: bool
) -> Callable[..., torch.Tensor]:
    """Return a step on tokens and next tokens, with the weights of seed 0; it returns the loss.

    Args:
        recipe: a key of ``RECIPES``.
        sizes: of the model.
        lr: AdamW's.
        compiled: compile the forward and backward pass, as torchao's documentation asks for.
        emulate: compute on any device, without autocast: torchao's layers know CUDA's alone.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    torch.manual_seed(0)
    with scope():
        model = Stack(sizes)
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(RECIPES[recipe]), emulate=emulate)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name != KEPT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def forward(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not emulate):
            return loss_fn(model(tokens), targets)

    loss_of = torch.compile(forward) if compiled else forward

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
