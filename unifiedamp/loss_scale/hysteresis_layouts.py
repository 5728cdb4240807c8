"""Readers of the scaler states of DeepSpeed and Megatron-LM, which count hysteresis down.

==================================  =================================================================================
DeepSpeed ``vars(loss_scaler)``     cur_scale, cur_iter, last_overflow_iter, scale_factor, scale_window, min_scale,
                                    delayed_shift, cur_hysteresis, consecutive_hysteresis, dynamic
DeepSpeed ZeRO checkpoints          loss_scaler: the object itself
DeepSpeed ``FP16_Optimizer``        dynamic_loss_scale, cur_scale, cur_iter, last_overflow_iter, scale_factor,
                                    scale_window; cur_hysteresis in new versions
Megatron ``DynamicGradScaler``      scale, growth_tracker, hysteresis_tracker
Megatron checkpoints                grad_scaler: the same
==================================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CheckpointError
from .saved_values import (
    MOST,
    ForeignState,
    checked_count,
    checked_factor,
    checked_scale,
    checked_whole,
    shortened,
)
from .settings import DynamicLossScale, StaticLossScale
from .state import FLOAT32_MAX, ScaleState

Reader = Callable[[Mapping[str, Any]], ForeignState]
DEEPSPEED, MEGATRON = "DeepSpeed", "Megatron-LM DynamicGradScaler"
_HELD = ("growth_factor", "backoff_factor", "growth_interval")


def _megatron(raw: Mapping[str, Any]) -> ForeignState:
    _require(raw, ("scale", "growth_tracker", "hysteresis_tracker"), MEGATRON)
    scale = checked_scale(_without_axis(raw["scale"]), "scale")
    good = checked_count(raw["growth_tracker"], "growth_tracker")
    # Counted on below 0, where each overflow backs off.
    left = max(checked_whole(raw["hysteresis_tracker"], "hysteresis_tracker", -MOST), 0)
    settings = DynamicLossScale(hysteresis_reset="growth")
    return ForeignState(ScaleState(scale, good), settings, MEGATRON, ("hysteresis_reset",), left)


def _deepspeed(raw: Mapping[str, Any]) -> ForeignState:
    scale = checked_scale(raw["cur_scale"], "cur_scale")
    kind = "dynamic_loss_scale" if "dynamic_loss_scale" in raw else "dynamic"
    if not _flag(raw, kind, True):
        return ForeignState(ScaleState(scale), StaticLossScale(scale), DEEPSPEED, ())
    _require(raw, ("cur_iter", "last_overflow_iter", "scale_factor", "scale_window"), DEEPSPEED)
    read = _loss_scaler if kind == "dynamic" else _fp16_optimizer
    return read(raw, scale, *_progress(raw))


def _progress(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Return the finite iterations since the last overflow, and the interval at which the scale grows."""
    now = checked_count(raw["cur_iter"], "cur_iter")
    last = checked_whole(raw["last_overflow_iter"], "last_overflow_iter", -MOST)
    if last >= max(now, 1):
        raise CheckpointError(f"last_overflow_iter must be below cur_iter ({now}), got {last}")
    return now - 1 - last, checked_whole(raw["scale_window"], "scale_window", 1)


def _loss_scaler(raw: Mapping[str, Any], scale: float, finite: int, window: int) -> ForeignState:
    _require(raw, ("delayed_shift", "cur_hysteresis"), DEEPSPEED)
    hysteresis = checked_whole(raw["delayed_shift"], "delayed_shift", 1)
    left = checked_whole(raw["cur_hysteresis"], "cur_hysteresis", 1)
    if left > hysteresis:
        raise CheckpointError(f"cur_hysteresis must be at most delayed_shift ({hysteresis}), got {left}")
    more: dict[str, Any] = {
        "hysteresis": hysteresis,
        "hysteresis_reset": "good_step" if _flag(raw, "consecutive_hysteresis", False) else "growth",
    }
    least = raw.get("min_scale", 0)
    if type(least) not in (int, float) or least != 0:  # 0 is none
        more["min_scale"] = checked_scale(least, "min_scale")
    settings = _settings(raw, scale, window, **more)
    return ForeignState(ScaleState(scale, finite % window), settings, DEEPSPEED, (*_HELD, *more), left)


def _fp16_optimizer(raw: Mapping[str, Any], scale: float, finite: int, window: int) -> ForeignState:
    # It grows one finite iteration later after an overflow than the scaler of ZeRO: at the next multiple of the window.
    good = max(finite - 1, 0) % window
    left = checked_whole(raw["cur_hysteresis"], "cur_hysteresis", 1) if "cur_hysteresis" in raw else None
    return ForeignState(ScaleState(scale, good), _settings(raw, scale, window), DEEPSPEED, _HELD, left)


def _settings(raw: Mapping[str, Any], scale: float, window: int, **more: Any) -> DynamicLossScale:
    factor = checked_factor(raw["scale_factor"], "scale_factor")
    if factor <= 1:
        raise CheckpointError(f"scale_factor must be above 1, got {factor:g}")
    more = {"min_scale": DynamicLossScale.min_scale, **more}
    first = max(scale, more["min_scale"])
    try:
        return DynamicLossScale(first, factor, 1 / factor, window, max_scale=FLOAT32_MAX, **more)
    except ValueError as error:
        raise CheckpointError(f"{DEEPSPEED} state: {error}") from error


def _flag(raw: Mapping[str, Any], name: str, default: bool) -> bool:
    value = raw.get(name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"{name} must be true or false, got {shortened(value)}")
    return value


def _without_axis(value: Any) -> Any:
    """Return the number of an array of one number: Megatron saves the scale with an axis, on the GPU."""
    try:
        return value.item() if tuple(getattr(value, "shape", ())) == (1,) else value
    except Exception as error:  # an array of any framework, which cannot be read for any reason
        raise CheckpointError(f"scale cannot be read: {error}") from error


def _inside(key: str, source: str, read: Reader, needed: str) -> Reader:
    """Return a reader of the scaler under a key: a mapping, or an object with the same attributes."""

    def reader(raw: Mapping[str, Any]) -> ForeignState:
        found = raw[key] if isinstance(raw[key], Mapping) else getattr(raw[key], "__dict__", None)
        if not isinstance(found, Mapping) or needed not in found:
            raise CheckpointError(f"{source} state: {key} must hold {needed}, got {shortened(raw[key])}")
        return read(found)

    return reader


def _require(raw: Mapping[str, Any], names: tuple[str, ...], source: str) -> None:
    missing = [name for name in names if name not in raw]
    if missing:
        raise CheckpointError(f"{source} state: {', '.join(missing)} missing")


READERS: dict[frozenset[str], Reader] = {
    frozenset({"scale", "growth_tracker"}): _megatron,
    frozenset({"grad_scaler"}): _inside("grad_scaler", MEGATRON, _megatron, "scale"),
    frozenset({"cur_scale"}): _deepspeed,
    frozenset({"loss_scaler"}): _inside("loss_scaler", DEEPSPEED, _deepspeed, "cur_scale"),
}
