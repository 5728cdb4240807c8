"""The environment variables of NVIDIA's containers that turn TensorFlow's graph rewrite on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from unifiedamp.backend import EnvironmentDefaults, errors

from .hardware import rewrite_support
from .selection import DeviceInfo

REWRITE_AND_SCALE = "TF_ENABLE_AUTO_MIXED_PRECISION"
"""Rewrites graphs and wraps optimizers in a dynamic loss scale."""

REWRITE_ALONE = "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
"""Rewrites graphs and leaves the loss scale to the user."""


def environment_defaults(device: DeviceInfo, options: Mapping[str, Any]) -> EnvironmentDefaults:
    """Return the policy and the mode that the variables ask for on a device.

    The rewrite is to float16 on a GPU and to bfloat16 on a CPU; where the CPU has no such rewrite, the variable has no
    effect and the user is warned. ``backend_options`` that ask for another mode, or for XLA, take precedence.

    Raises:
        ConfigError: a variable is neither 0 nor 1.
    """
    variable = next((name for name in (REWRITE_AND_SCALE, REWRITE_ALONE) if _is_on(name)), None)
    if variable is None or options.get("mode", "graph_rewrite") != "graph_rewrite" or options.get("xla"):
        return EnvironmentDefaults()
    support = rewrite_support(device)
    if not support:
        return EnvironmentDefaults(warning=f"environment variable {variable} has no effect: {support.reason}")
    scale = "dynamic" if variable == REWRITE_AND_SCALE else "none"
    policy = f"mixed_{'bfloat16' if device.is_cpu else 'float16'};loss_scale={scale}"
    return EnvironmentDefaults(policy, f"environment variable {variable}", {"mode": "graph_rewrite"})


def _is_on(variable: str) -> bool:
    text = os.environ.get(variable, "").strip().lower()
    if text not in ("", "0", "false", "1", "true"):
        raise errors.ConfigError(f"environment variable {variable} must be 0 or 1, got {text!r}")
    return text in ("1", "true")
