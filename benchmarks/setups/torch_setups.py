"""torch: float32 with and without TF32, autocast, and the best known native configuration."""

from __future__ import annotations

from typing import Any

import torch
from native import torch_amp as native
from recipes import Parts, Recipe
from timing import Loop

from . import Setup, ours

LAUNCH_BOUND = 64
"""With smaller images a GPU waits for the host, for which torch has mode "reduce-overhead"."""


def setups(recipe: Recipe) -> dict[str, Setup]:
    """Return the configurations for this device: references, unifiedamp's, and others."""
    on_gpu = native.DEVICE == "cuda"
    held, others = (_held_on_gpu(recipe), _others_on_gpu(recipe)) if on_gpu else (_held_on_cpu(), _others_on_cpu())
    return {**held, **ours(native.low()), **others}


def _held_on_cpu() -> dict[str, Setup]:
    return {
        "fp32 eager": Setup("float32", "float32", stays=True),
        "fp32 + compile": Setup("torch.compile", "float32", "default", stays=True),
        "best native": Setup("autocast, torch.compile", native.low(), "default", stays=True),
    }


def _others_on_cpu() -> dict[str, Setup]:
    return {"native AMP": Setup("torch.autocast", native.low())}


def _held_on_gpu(recipe: Recipe) -> dict[str, Setup]:
    return {
        "strict fp32": Setup("allow_tf32=False", "float32", tf32=False, stays=True),
        "TF32": Setup("allow_tf32=True", "float32", tf32=True, stays=True),
        "native AMP": Setup("autocast float16, GradScaler", native.low(), stays=True),
        "best native": _best(recipe),
    }


def _others_on_gpu(recipe: Recipe) -> dict[str, Setup]:
    low, image = native.low(), recipe.model == "resnet50"
    found = {}
    if image:
        how = 'compile="default", tuning={"channels_last": True}'
        found["ours default, channels last"] = Setup(how, low, "default", ours=True, tuning={"channels_last": True})
        found["AMP + channels last"] = Setup("channels_last", low, channels_last=True)
    if recipe.model == "gpt2":
        found["AMP + compile"] = Setup("float16, torch.compile", low, "default")
    elif recipe.shape[0] < LAUNCH_BOUND:
        how = "float16, torch.compile(mode='reduce-overhead')"
        found["AMP + reduce-overhead"] = Setup(how, low, "reduce-overhead", channels_last=image)
    found["fp32 + compile"] = Setup("allow_tf32=False, torch.compile", "float32", "default", tf32=False)
    found["TF32 + compile"] = Setup("allow_tf32=True, torch.compile", "float32", "default", tf32=True)
    return found


def _best(recipe: Recipe) -> Setup:
    if recipe.model == "gpt2":
        return Setup("bfloat16, torch.compile", "mixed_bfloat16", "default", stays=True)
    if recipe.model == "resnet50":
        how = "channels_last, torch.compile, cudnn.benchmark"
        return Setup(how, native.low(), "default", channels_last=True, tuned=True, stays=True)
    return Setup("float16, torch.compile", native.low(), "default", stays=True)


def build(parts: Parts, setup: Setup) -> Loop:
    """Return a hand-written loop."""
    if setup.tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setup.tf32
    torch.backends.cudnn.benchmark = setup.tuned
    with native.scope():
        model = parts.model()
        x, y = native.tensor(parts.images), native.tensor(parts.labels)
        if setup.channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        optimizer = parts.optimizer(model)
    scale = parts.recipe.first_scale if setup.policy == "mixed_float16" else None
    step: Any = native.train_step(model, optimizer, parts.loss_fn, scale, setup.compiled, setup.policy)
    return Loop(lambda: step(x, y), native.finish, native.around)
