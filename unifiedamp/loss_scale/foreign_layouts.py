"""Readers of the states that the frameworks' own scalers save.

=====================================  ==============================================================================
torch ``GradScaler.state_dict()``      scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; ``{}``
                                       when it was disabled
Apex ``amp.state_dict()``              loss_scaler0: {loss_scale, unskipped}, loss_scaler1: …
Keras 3 ``LossScaleOptimizer``         dynamic_scale, step_counter
Keras 2 ``LossScaleOptimizer``         current_loss_scale, good_steps (loss_scale in its oldest form)
MXNet ``vars(LossScaler)``             _loss_scale, _next_loss_scale, _unskipped, _scale_seq_len, _max_loss_scale
=====================================  ==============================================================================
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import CheckpointError
from .settings import DynamicLossScale, LossScale
from .state import FLOAT32_MAX, ScaleState, float32

MOST = 2**52
"""The largest count: the sum of two is exact in float64, in which some devices count."""
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


class ForeignState(NamedTuple):
    """What a foreign layout holds; ``state`` is None when its scaler was off."""

    state: ScaleState | None
    loss_scale: LossScale | None
    source: str


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
        f"this is no state of unifiedamp, nor of torch's GradScaler, Apex, Keras's LossScaleOptimizer or MXNet's "
        f"LossScaler; its keys are {', '.join(sorted(map(shortened, raw))[:8])}"
    )


def checked_scale(value: Any, name: str) -> float:
    """Return a saved scale, rounded to the nearest float32.

    Raises:
        CheckpointError: not a finite number above 0 that float32 can hold.
    """
    number = checked_factor(value, name)
    if not float32(number):
        raise CheckpointError(f"{name} must be a positive number that float32 can hold, got {shortened(value)}")
    return float32(number)


def checked_factor(value: Any, name: str) -> float:
    """Return a saved factor as it is; see :func:`checked_scale`."""
    number = _plain(value, name)
    if not 0 < number <= FLOAT32_MAX:
        raise CheckpointError(f"{name} must be a positive number that float32 can hold, got {shortened(value)}")
    return float(number)


def checked_count(value: Any, name: str) -> int:
    """Return a saved count.

    Raises:
        CheckpointError: not a whole number from 0 to :data:`MOST`.
    """
    number = _plain(value, name)
    if not 0 <= number <= MOST or number != int(number):
        raise CheckpointError(f"{name} must be a whole number from 0 to 2**52, got {shortened(value)}")
    return int(number)


def _plain(value: Any, name: str) -> int | float:
    """Return a number, or an array of one number without axes, as a plain number that is finite."""
    try:
        plain = value.numpy() if hasattr(value, "numpy") else value
        plain = plain.item() if hasattr(plain, "item") and not getattr(plain, "ndim", 0) else plain
    except Exception as error:  # an array of any framework, which cannot be read for any reason
        raise CheckpointError(f"{name} cannot be read: {error}") from error
    # Of floats only; a whole number may be too large for isfinite.
    if type(plain) is not int and not (type(plain) is float and math.isfinite(plain)):
        raise CheckpointError(f"{name} must be a finite number, got {shortened(value)}")
    return plain


def shortened(value: Any) -> str:
    """Return a value's text for a message; of a long one its beginning and end."""
    try:
        return _repr.repr(value)
    except Exception:  # repr is the value's, and may fail for any reason
        return f"a value of type {type(value).__name__}"


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
}
