"""Fused optimizers skip a step in their kernel: attributes tell it by what."""

from __future__ import annotations

from typing import Any

import torch

from ..device.fused_optimizers import is_fused
from .native_calls import run_step


def skips_in_kernel(optimizer: Any) -> bool:
    """Return whether an optimizer's kernel can skip: it was made with ``fused=True``, or runs its fused kernel now."""
    return getattr(optimizer, "_step_supports_amp_scaling", False) or is_fused(optimizer)


def step_in_kernel(optimizer: Any, skipped: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run a fused optimizer's step, which does nothing where ``skipped``, a float32 scalar, is 1.

    Its gradients are unscaled already.
    """
    try:
        optimizer.grad_scale, optimizer.found_inf = None, skipped
        return run_step(optimizer, *args, **kwargs)
    finally:
        leave_kernel(optimizer)


def leave_kernel(optimizer: Any) -> None:
    """Remove from an optimizer what its kernel skips by. Idempotent."""
    for name in ("grad_scale", "found_inf"):
        vars(optimizer).pop(name, None)
