"""Readers of the states that the frameworks' own scalers save.

=====================================  ==============================================================================
torch ``GradScaler.state_dict()``      scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; ``{}``
                                       when it was disabled
Apex ``amp.state_dict()``              loss_scaler0: {loss_scale, unskipped}, loss_scaler1: …
Keras 3 ``LossScaleOptimizer``         dynamic_scale, step_counter
Keras 2 ``LossScaleOptimizer``         current_loss_scale, good_steps (loss_scale in its oldest form)
MXNet ``vars(LossScaler)``             _loss_scale, _next_loss_scale, _unskipped, _scale_seq_len, _max_loss_scale
DeepSpeed, Megatron-LM                 see ``hysteresis_layouts``
=====================================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CheckpointError
from . import hysteresis_layouts
from .saved_values import ForeignState, checked_count, checked_factor, checked_scale, shortened
from .settings import DynamicLossScale
from .state import ScaleState


def read_foreign(raw: Mapping[str, Any]) -> ForeignState:
    """Recognise a foreign layout by its keys and read it.

    Raises:
        CheckpointError: no known layout, or a value in it is not usable.
    """
    if not raw:
        return ForeignState(None, None, "an empty mapping, as a disabled torch GradScaler saves")
    for keys, reader in _READERS.items():
        if keys <= set(raw):
            return reader(raw)
    raise CheckpointError(
        f"this is no state of unifiedamp, nor of torch's GradScaler, Apex, Keras's LossScaleOptimizer, MXNet's "
        f"LossScaler, DeepSpeed or Megatron-LM; its keys are {', '.join(sorted(map(shortened, raw))[:8])}{_hint(raw)}"
    )


def _hint(raw: Mapping[str, Any]) -> str:
    """Return which part of a whole checkpoint to pass."""
    parts = [key for key, value in raw.items() if isinstance(value, Mapping) and "schema" in value]
    return f"; pass the part {shortened(parts[0])}" if parts else ""


def _torch(raw: Mapping[str, Any]) -> ForeignState:
    state = _state(raw, "scale", "_growth_tracker")
    settings = None
    if {"growth_factor", "backoff_factor", "growth_interval"} <= set(raw):
        default = DynamicLossScale()
        interval = checked_count(raw["growth_interval"], "growth_interval")
        try:
            settings = DynamicLossScale(
                initial_scale=min(max(state.scale, default.min_scale), default.max_scale),
                growth_factor=checked_factor(raw["growth_factor"], "growth_factor"),
                backoff_factor=checked_factor(raw["backoff_factor"], "backoff_factor"),
                growth_interval=interval,
            )
        except ValueError as error:
            raise CheckpointError(f"torch GradScaler state: {error}") from error
    return ForeignState(state, settings, "torch GradScaler")


def _apex(raw: Mapping[str, Any]) -> ForeignState:
    entry = raw["loss_scaler0"]
    if not isinstance(entry, Mapping) or not {"loss_scale", "unskipped"} <= set(entry):
        raise CheckpointError("Apex state: loss_scaler0 must hold loss_scale and unskipped")
    return ForeignState(_state(entry, "loss_scale", "unskipped"), None, "Apex amp")


def _state(raw: Mapping[str, Any], scale: str, good: str) -> ScaleState:
    return ScaleState(checked_scale(raw[scale], scale), checked_count(raw[good], good))


def _pair(scale: str, good: str, source: str) -> Callable[[Mapping[str, Any]], ForeignState]:
    def read(raw: Mapping[str, Any]) -> ForeignState:
        return ForeignState(_state(raw, scale, good), None, source)

    return read


_READERS: dict[frozenset[str], Callable[[Mapping[str, Any]], ForeignState]] = {
    frozenset({"scale", "_growth_tracker"}): _torch,
    frozenset({"loss_scaler0"}): _apex,
    frozenset({"dynamic_scale", "step_counter"}): _pair("dynamic_scale", "step_counter", "Keras 3 LossScaleOptimizer"),
    frozenset({"current_loss_scale", "good_steps"}): _pair(
        "current_loss_scale", "good_steps", "Keras 2 LossScaleOptimizer"
    ),
    # The scale that MXNet's next step uses is the pending one.
    frozenset({"_next_loss_scale", "_unskipped"}): _pair("_next_loss_scale", "_unskipped", "MXNet LossScaler"),
    frozenset({"_loss_scale", "_unskipped"}): _pair("_loss_scale", "_unskipped", "MXNet LossScaler"),
    **hysteresis_layouts.READERS,
}
