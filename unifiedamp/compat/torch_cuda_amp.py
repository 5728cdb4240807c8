"""The spellings of ``torch.cuda.amp``: ``autocast``, ``GradScaler``, ``custom_fwd`` and ``custom_bwd``.

    from unifiedamp.compat.torch_cuda_amp import GradScaler, autocast

The regions and the scaler are those of a session of ours, on the GPU where torch sees one and else on the CPU (where
``torch.cuda.amp`` switches itself off).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import unifiedamp as ua

from .looks import after_step

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

_POLICIES = {torch.float16: "mixed_float16", torch.bfloat16: "mixed_bfloat16", torch.float32: "float32"}
_KEPT = ("growth_factor", "backoff_factor", "growth_interval")
_sessions: dict[tuple[Any, bool], ua.Amp] = {}


def autocast(enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True) -> Any:
    """Return a region that runs under autocast: a context, and a decorator of functions.

    Args:
        enabled: False makes a region without autocast.
        dtype: ``torch.float16``, ``torch.bfloat16``, or ``torch.float32`` for no autocast.
        cache_enabled: keep the casts of parameters until the outermost region is left.

    Raises:
        PolicyNotSupportedError: torch cannot compute in ``dtype`` here.
        ConfigError: another dtype.
    """
    key = (dtype, bool(cache_enabled))
    if key not in _sessions:
        if dtype not in _POLICIES:
            raise ua.ConfigError(f"autocast: dtype must be torch.float16, bfloat16 or float32, got {dtype!r}")
        options = {"torch": {"cache_enabled": bool(cache_enabled)}}
        _sessions[key] = ua.Amp("torch", _POLICIES[dtype], loss_scale="none", backend_options=options)
    return _sessions[key].autocast(bool(enabled) and dtype is not torch.float32)


class GradScaler(torch.amp.GradScaler):
    """The scaler of a session, as a ``GradScaler``; on any device.

    It differs from torch's where torch's goes wrong: the loss is multiplied in float32, the scale stays within bounds,
    all ranks decide alike, and ``update`` raises ``LossScaleExhausted`` after 50 skipped steps in a row.

    Args:
        init_scale, growth_factor, backoff_factor, growth_interval: see ``unifiedamp.DynamicLossScale``.
        enabled: False makes every call pass its argument through.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cpu", enabled=False)  # What it would hold itself is the session's.
        self._enabled = bool(enabled)
        low, high = min(init_scale, 2.0**-14), max(init_scale, 2.0**24)
        self._begin(ua.DynamicLossScale(init_scale, growth_factor, backoff_factor, growth_interval, low, high))

    def _begin(self, settings: ua.DynamicLossScale) -> None:
        self._settings = settings
        if self._enabled:
            self._amp = ua.Amp("torch", "mixed_float16", loss_scale=settings)
            self._scaler = self._amp.backend.scaler  # type: ignore[attr-defined]

    def _change(self, **changes: Any) -> None:
        """Go on with other settings from the same scale."""
        state = self._amp.backend.read_state() if self._enabled else None
        self._begin(replace(self._settings, **changes))
        if state is not None:
            self._amp.backend.write_state(state)

    # -- a step --------------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or nested lists of them, times the scale, in float32."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            return self._scaler.scale(outputs.float())
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(each) for each in outputs)
        return [self.scale(each) for each in outputs]

    def unscale_(self, optimizer: Any) -> None:
        """Divide the optimizer's gradients by the scale, once between two updates; decides whether they are finite."""
        if self._enabled:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``optimizer.step`` unless a gradient is inf or nan; return what it returned, None if skipped."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        return self._scaler.step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Move the scale by what the steps since the last update found; ``new_scale`` sets it instead.

        Raises:
            LossScaleExhausted: 50 steps in a row were skipped.
        """
        if self._enabled:
            self._scaler.update(new_scale)
            after_step(self._amp)

    # -- state ---------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the scale; 1.0 where disabled."""
        return self._amp.loss_scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return what the scale is multiplied by to grow."""
        return self._settings.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by to grow."""
        self._change(growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        """Return what the scale is multiplied by after inf or nan."""
        return self._settings.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after inf or nan."""
        self._change(backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        """Return after how many finite steps in a row the scale grows."""
        return self._settings.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set after how many finite steps in a row the scale grows."""
        self._change(growth_interval=new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Return the state in torch's own layout; empty where disabled."""
        if not self._enabled:
            return {}
        state = self._amp.backend.read_state()
        kept = {name: getattr(self._settings, name) for name in _KEPT}
        return {"scale": state.scale, **kept, "_growth_tracker": state.good_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what a ``GradScaler``'s ``state_dict`` holds, growth settings included.

        Raises:
            RuntimeError: it is empty: it was saved disabled.
        """
        if not self._enabled:
            return
        changed = {name: state_dict[name] for name in _KEPT if name in state_dict}
        if any(getattr(self._settings, name) != value for name, value in changed.items()):
            self._change(**changed)
        self._scaler.load_state_dict(state_dict)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: Any = None) -> Any:
    """Decorate the ``forward`` of an ``autograd.Function``.

    Args:
        fwd: the method.
        cast_inputs: inside autocast, floating-point arguments are cast to this dtype and the body runs without it.
    """
    if fwd is None:
        return functools.partial(custom_fwd, cast_inputs=cast_inputs)
    return _by_device(fwd, functools.partial(torch.amp.custom_fwd, cast_inputs=cast_inputs))


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """Decorate the ``backward`` of an ``autograd.Function``: it runs in the state that its forward ran in."""
    return _by_device(bwd, torch.amp.custom_bwd)


def _by_device(method: Callable[..., Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method``, wrapped for the device that its tensors are on."""
    wrapped: dict[str, Callable[..., Any]] = {}

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        kind = next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")
        if kind not in wrapped:
            wrapped[kind] = wrap(method, device_type=kind)
        return wrapped[kind](*args, **kwargs)

    return call
