"""Which device a session runs on, and which policies run there."""

from __future__ import annotations

import importlib.util

import torch

from unifiedamp.backend import PRESETS, Policy, Support, errors

from .kinds import traits


def pick_device(wanted: str | None) -> torch.device:
    """Return the device asked for; None takes CUDA where it is available, else the CPU.

    Raises:
        ConfigError: torch does not know the device, or has no autocast for it, or it is not there.
    """
    if wanted is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise errors.ConfigError(f"device {wanted!r} is not one that torch knows ('cpu', 'cuda:0'): {error}") from None
    if not torch.amp.is_autocast_available(device.type):
        raise errors.ConfigError(f"device {wanted!r}: torch {torch.__version__} has no autocast for {device.type!r}")
    return traits(device).check(device)


def dtype_support(device: torch.device, dtype: str, emulate: bool = False) -> tuple[Support, Support]:
    """Return whether ``dtype`` computations run on the device, and whether they are faster than float32 there.

    Args:
        device: where.
        dtype: as policies name it.
        emulate: the dtype is asked for with ``emulate``.
    """
    if dtype == "float32":
        return Support(True, "runs everywhere"), Support(True, "the reference")
    if emulate:
        return Support(True, "emulated, for its numerics alone"), Support(True, "emulated, for its numerics alone")
    if dtype == "float8":
        return float8_support(device), float8_support(device)
    return traits(device).dtype_support(device, dtype)


def float8_support(device: torch.device) -> Support:
    """Return whether the device multiplies float8 matrices."""
    return traits(device).float8(device)


def has_float8_kernels(device: torch.device) -> bool:
    """Return whether casts to float8 run as Triton kernels; torch brings Triton to Linux."""
    return float8_support(device).ok and importlib.util.find_spec("triton") is not None


def default_policy(wanted: str | None) -> tuple[str, str]:
    """Return the preset recommended for the device, and why."""
    device = pick_device(wanted)
    for dtype, preset in (("bfloat16", "mixed_bfloat16"), ("float16", "mixed_float16")):
        runs, helps = dtype_support(device, dtype)
        if runs and helps:
            return preset, helps.reason
    return "float32", dtype_support(device, "bfloat16")[1].reason


def policy_support(device: torch.device, emulate: bool) -> dict[str, Support]:
    """Return preset → whether it runs on the device, and whether it helps; float8 emulated or not."""
    answers = {}
    for name, preset in PRESETS.items():
        runs, helps = dtype_support(device, preset.compute_dtype, emulate and preset.compute_dtype == "float8")
        gains = None if preset.compute_dtype == "float32" else helps.ok and not _emulated(device, preset, emulate)
        answers[name] = Support(True, helps.reason, gains) if runs else runs
    return answers


def _emulated(device: torch.device, policy: Policy, emulate: bool) -> bool:
    return policy.compute_dtype == "float8" and emulate and not float8_support(device)
