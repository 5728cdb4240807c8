"""Readers of the states that the frameworks' own scalers save, and a writer of torch's.

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

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import CheckpointError
from .loss_scale import DynamicLossScale, LossScale, ScaleState


class NativeState(NamedTuple):
    """What a native layout holds; ``state`` is None when its scaler was off."""

    state: ScaleState | None
    loss_scale: LossScale | None
    source: str


def read_native(raw: Mapping[str, Any]) -> NativeState:
    """Recognise a native layout by its keys and read it.

    Raises:
        CheckpointError: no known layout, or a value in it is not usable.
    """
    if not raw:
        return NativeState(None, None, "an empty mapping, as a disabled torch GradScaler saves")
    for keys, reader in _READERS.items():
        if keys <= set(raw):
            return reader(raw)
    raise CheckpointError(
        f"this is no state of unifiedamp, nor of torch's GradScaler, Apex, Keras's LossScaleOptimizer or MXNet's "
        f"LossScaler; its keys are {sorted(map(str, raw))[:8]}"
    )


def to_grad_scaler_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``torch.amp.GradScaler.load_state_dict`` takes, from what ``Amp.state_dict`` returned.

    The scale, the count of finite steps and the settings that torch has are carried over; bounds, hysteresis and counts
    of steps have no place in torch's layout. Of a session without a loss scale this is ``{}``, which only a disabled
    ``GradScaler`` loads. A static scale is one that never changes: both factors are 1.

    Args:
        state: a state of any backend's session, or any native layout that ``Amp.load_state_dict`` reads.

    Raises:
        CheckpointError: it is no such state.

    Example:
        scaler = torch.amp.GradScaler("cuda")
        scaler.load_state_dict(to_grad_scaler_state(amp.state_dict()))
    """
    from .checkpoint import read_saved

    saved = read_saved(state)
    if saved.state is None or (saved.loss_scale is not None and not saved.loss_scale.enabled):
        return {}
    settings = saved.loss_scale or DynamicLossScale()
    dynamic = isinstance(settings, DynamicLossScale)
    return {
        "scale": float(saved.state.scale),
        "growth_factor": settings.growth_factor if dynamic else 1.0,
        "backoff_factor": settings.backoff_factor if dynamic else 1.0,
        "growth_interval": settings.growth_interval if dynamic else 2**31 - 1,
        "_growth_tracker": saved.state.good_steps,
    }


def _number(raw: Mapping[str, Any], key: str, *, whole: bool = False) -> Any:
    from .checkpoint import checked_number

    value = raw[key]
    return checked_number(value.numpy() if hasattr(value, "numpy") else value, key, whole=whole)


def _torch(raw: Mapping[str, Any]) -> NativeState:
    state = ScaleState(_number(raw, "scale"), _number(raw, "_growth_tracker", whole=True))
    settings = None
    if {"growth_factor", "backoff_factor", "growth_interval"} <= set(raw):
        default = DynamicLossScale()
        interval = _number(raw, "growth_interval", whole=True)
        try:
            settings = DynamicLossScale(
                initial_scale=min(max(state.scale, default.min_scale), default.max_scale),
                growth_factor=_number(raw, "growth_factor"),
                backoff_factor=_number(raw, "backoff_factor"),
                growth_interval=interval,
            )
        except ValueError as error:
            raise CheckpointError(f"torch GradScaler state: {error}") from error
    return NativeState(state, settings, "torch GradScaler")


def _apex(raw: Mapping[str, Any]) -> NativeState:
    entry = raw["loss_scaler0"]
    if not isinstance(entry, Mapping) or not {"loss_scale", "unskipped"} <= set(entry):
        raise CheckpointError("Apex state: loss_scaler0 must hold loss_scale and unskipped")
    state = ScaleState(_number(entry, "loss_scale"), _number(entry, "unskipped", whole=True))
    return NativeState(state, None, "Apex amp")


def _pair(scale: str, good: str, source: str) -> Callable[[Mapping[str, Any]], NativeState]:
    def read(raw: Mapping[str, Any]) -> NativeState:
        return NativeState(ScaleState(_number(raw, scale), _number(raw, good, whole=True)), None, source)

    return read


_READERS: dict[frozenset[str], Callable[[Mapping[str, Any]], NativeState]] = {
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
