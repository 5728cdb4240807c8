"""Fused optimizers skip a step in their kernel: attributes tell it by what."""

from __future__ import annotations

from typing import Any

import torch

from .native_calls import run_step


def skips_in_kernel(optimizer: Any) -> bool:
    """Return whether the kernels of all groups can skip: fused ones do, and those of optimizers that say so."""
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    return all(group.get("fused", supports) for group in optimizer.param_groups)


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
