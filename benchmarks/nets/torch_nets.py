"""torch: the models of these benchmarks, the examples' ResNet-50, and optimizers from ``torch.optim``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import blocks
import torch
from torch.nn import functional

from examples.models import torch_resnet

from . import torch_gpt2, torch_unet, torch_vit

IMAGE_AXES = (0, 3, 1, 2)
FORMS = {"fused": {"fused": True}, "foreach": {"foreach": True}}


def make_model(recipe: Any) -> torch.nn.Module:
    """Return the recipe's model; the initial weights are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if recipe.model == "gpt2":
            size = torch_gpt2.TINY if recipe.tiny else torch_gpt2.SMALL
            return torch_gpt2.Gpt2(recipe.classes, recipe.shape[0], **size)
        if recipe.model == "llama":
            sizes = blocks.SMOKE if recipe.tiny else blocks.LLAMA
            return blocks.Stack(
                dataclasses.replace(sizes, model="llama", length=recipe.shape[0], tokens=recipe.classes)
            )
        if recipe.model == "vit":
            size = torch_vit.TINY if recipe.tiny else torch_vit.SMALL
            return torch_vit.ViT(recipe.shape[0], recipe.classes, **size)
        if recipe.model == "unet":
            return torch_unet.UNet(torch_unet.TINY if recipe.tiny else torch_unet.FULL, recipe.classes)
        return torch_resnet.ResNet(*(torch_resnet.TINY if recipe.tiny else torch_resnet.FULL), recipe.classes)


def make_optimizer(model: torch.nn.Module, kind: str, form: str, rate: float, momentum: float) -> Any:
    """Return SGD or AdamW, fused or foreach."""
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), rate, **FORMS[form])
    return torch.optim.SGD(model.parameters(), rate, momentum, **FORMS[form])


def loss_fn(recipe: Any) -> Callable[[Any, Any], torch.Tensor]:
    """Return a function for the mean cross entropy, over all tokens for a language model."""

    def of_tokens(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return of_tokens if recipe.unit == "tok" else functional.cross_entropy
