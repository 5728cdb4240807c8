"""The policy and the loss scales that Apex's options stand for."""

from __future__ import annotations

from typing import Any

import torch

import unifiedamp as ua
from unifiedamp.backend import LossScale
from unifiedamp.errors import ConfigError

from .options import HALF, Options

_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def policy_of(options: Options, outputs: Any) -> ua.Policy:
    """Return the policy; ``outputs`` is the dtype of the models' outputs, None for float32.

    Raises:
        ConfigError: no such dtype of outputs.
    """
    if outputs is not None and outputs not in _NAMES:
        raise ConfigError(
            f"initialize: cast_model_outputs must be torch.float32, float16, bfloat16 or None, got {outputs!r}"
        )
    output = _NAMES[outputs or torch.float32]
    cast = _NAMES[options.cast_model_type or torch.float32]
    if options.opt_level == "O1":
        half = cast if options.cast_model_type in HALF else "float16"
        return ua.Policy("float32", half if options.patch_torch_functions else "float32", output)
    return ua.Policy(cast, cast, output, keep_norm_float32=bool(options.keep_batchnorm_fp32))


def loss_scale_of(options: Options, floor: float | None, ceiling: float) -> LossScale:
    """Return the loss scale; a dynamic one stays between ``floor`` (None: the default) and ``ceiling``.

    Raises:
        ConfigError: there is nothing between them.
    """
    if options.loss_scale == 1.0:
        return ua.NoLossScale()
    if options.loss_scale != "dynamic":
        return ua.StaticLossScale(float(options.loss_scale))
    low = ua.DynamicLossScale().min_scale if floor is None else floor
    if not 0 < low <= ceiling:
        raise ConfigError(
            f"initialize: min_loss_scale ({floor!r}) must be positive and not above max_loss_scale ({ceiling!r})"
        )
    return ua.DynamicLossScale(initial_scale=min(max(2.0**16, low), ceiling), min_scale=low, max_scale=ceiling)


def check_losses(number: object) -> None:
    """Raise ConfigError unless ``number`` can count losses."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigError(f"initialize: num_losses must be a whole number of at least 1, got {number!r}")
