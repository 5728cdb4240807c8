"""torch's debugging modes, and what each costs."""

from __future__ import annotations

import os

import torch

_COSTS = {
    "torch.autograd.set_detect_anomaly(True)": "each operation keeps a stack trace, each gradient is checked for nan",
    "torch.autograd.profiler": "each operation is written down",
    "CUDA_LAUNCH_BLOCKING=1": "each kernel is waited for",
    "torch.cuda.set_sync_debug_mode": "each wait for the device is looked for",
}


def debug_modes() -> dict[str, str]:
    """Return the debugging modes that are on → what they cost."""
    found = {
        "torch.autograd.set_detect_anomaly(True)": torch.is_anomaly_enabled(),
        "torch.autograd.profiler": torch._C._autograd._profiler_enabled(),
        "CUDA_LAUNCH_BLOCKING=1": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        "torch.cuda.set_sync_debug_mode": _syncs_are_reported(),
    }
    return {mode: _COSTS[mode] for mode, on in found.items() if on}


def _syncs_are_reported() -> bool:
    initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return bool(initialized and torch.cuda.get_sync_debug_mode())
