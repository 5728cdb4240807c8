"""The spellings of ``torch.cuda.amp`` and ``torch.amp``: ``autocast``, ``GradScaler``, ``custom_fwd``, ``custom_bwd``.

    from unifiedamp.compat.torch_cuda_amp import GradScaler, autocast

Both signatures work: ``GradScaler(1024.0)`` and ``GradScaler("cuda", 1024.0)``, ``autocast(True)`` and
``autocast("cuda", torch.float16)``.

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
from unifiedamp.measured import making

from . import after_step, note_loss, note_step

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

_POLICIES = {torch.float16: "mixed_float16", torch.bfloat16: "mixed_bfloat16", torch.float32: "float32"}
_SCALER = {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "enabled": True}
_KEPT = ("growth_factor", "backoff_factor", "growth_interval")
_sessions: dict[tuple[Any, ...], ua.Amp] = {}
_OWN = ("enabled", "dtype", "cache_enabled")
_WITH_DEVICE = ("dtype", "enabled", "cache_enabled")


def autocast(*args: Any, device_type: Any = None, **options: Any) -> Any:
    """Return a region that runs under autocast: a context, and a decorator of functions.

    Args:
        *args: ``enabled, dtype, cache_enabled``, as torch.cuda.amp has them; or ``device_type, dtype, enabled,
            cache_enabled``, as torch.amp has them.
        device_type: "cuda" (the CPU where torch sees no GPU) or "cpu".
        **options: ``enabled`` (False makes a region without autocast); ``dtype``: ``torch.float16``,
            ``torch.bfloat16`` (the default for "cpu"), or ``torch.float32`` for no autocast; ``cache_enabled``: keep
            the casts of parameters until the outermost region is left.

    Raises:
        PolicyNotSupportedError: torch cannot compute in ``dtype`` here.
        ConfigError: another dtype or device.
        TypeError: an argument that there is not, or one twice.
    """
    device, args = _device("autocast", device_type, args)
    given = _named("autocast", _OWN if device is None else _WITH_DEVICE, args, options)
    dtype = given.get("dtype")
    dtype = (torch.bfloat16 if device == "cpu" else torch.float16) if dtype is None else dtype
    cached, enabled = given.get("cache_enabled"), bool(given.get("enabled", True))
    key = (dtype, cached is None or bool(cached), device == "cpu")
    if key not in _sessions:
        if dtype not in _POLICIES:
            raise ua.ConfigError(f"autocast: dtype must be torch.float16, bfloat16 or float32, got {dtype!r}")
        options = {"torch": {"cache_enabled": key[1]}}
        where = "cpu" if device == "cpu" else None
        with making("casts"):
            _sessions[key] = ua.Amp("torch", _POLICIES[dtype], loss_scale="none", device=where, backend_options=options)
    return _sessions[key].autocast(enabled and dtype is not torch.float32)


def _device(call: str, given: Any, args: tuple[Any, ...]) -> tuple[str | None, tuple[Any, ...]]:
    """Return the kind of device that a call names, or None, and the other arguments.

    Raises:
        ConfigError: neither "cuda" nor "cpu".
    """
    if given is None and args and isinstance(args[0], str | torch.device):
        given, args = args[0], args[1:]
    kind = None if given is None else torch.device(given).type
    if kind not in (None, "cuda", "cpu"):
        raise ua.ConfigError(f'{call}: this runs on "cuda" and "cpu", got {given!r}')
    return kind, args


def _named(call: str, names: tuple[str, ...], args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name.

    Raises:
        TypeError: there is no such argument, or one is given twice.
    """
    given = dict(zip(names, args, strict=False))
    wrong = sorted((options.keys() - set(names)) | (options.keys() & given.keys()))
    if len(args) > len(names) or wrong:
        raise TypeError(f"{call}() takes {', '.join(names)}, each once; got {wrong or f'{len(args)} positional ones'}")
    return given | options


class GradScaler(torch.amp.GradScaler):
    """The scaler of a session, as a ``GradScaler``; on any device.

    It differs from torch's where torch's goes wrong: the loss is multiplied in float32, the scale stays within bounds,
    all ranks decide alike, and ``update`` raises ``LossScaleExhausted`` after 50 skipped steps in a row.

    Args:
        *args: ``init_scale, growth_factor, backoff_factor, growth_interval, enabled``; as torch.amp has it, ``device``
            before them.
        device: "cuda" (the CPU where torch sees no GPU) or "cpu".
        **options: the same by name; see ``unifiedamp.DynamicLossScale``. ``enabled=False`` makes every call pass its
            argument through.

    Raises:
        ConfigError: a number is out of range.
        TypeError: an argument that there is not, or one twice.
    """

    def __init__(self, *args: Any, device: Any = None, **options: Any) -> None:
        super().__init__("cpu", enabled=False)  # What it would hold itself is the session's.
        kind, args = _device("GradScaler", device, args)
        self._kind = "cpu" if kind == "cpu" else None
        given = _SCALER | _named("GradScaler", tuple(_SCALER), args, options)
        self._enabled = bool(given.pop("enabled"))
        start = given.pop("init_scale")
        low, high = min(start, 2.0**-14), max(start, 2.0**24)
        self._begin(ua.DynamicLossScale(initial_scale=start, min_scale=low, max_scale=high, **given))

    def _begin(self, settings: ua.DynamicLossScale) -> None:
        self._settings = settings
        if self._enabled:
            with making("scaler"):
                self._amp = ua.Amp("torch", "mixed_float16", loss_scale=settings, device=self._kind)
            self._scaler = self._amp.backend.interop.scaler
            # Only a measured run gives another scale than asked for: under a policy that needs none.
            self._enabled = isinstance(self._amp.loss_scale_settings, ua.DynamicLossScale)

    def _change(self, **changes: Any) -> None:
        """Go on with other settings from the same scale."""
        state = self._amp.backend.training.read_state() if self._enabled else None
        self._begin(replace(self._settings, **changes))
        if state is not None:
            self._amp.backend.training.write_state(state)

    # -- a step --------------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or nested lists of them, times the scale, in float32."""
        note_loss(outputs)
        return self._scaled(outputs)

    def _scaled(self, outputs: Any) -> Any:
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            return self._scaler.scale(outputs.float())
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self._scaled(each) for each in outputs)
        return [self._scaled(each) for each in outputs]

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
        else:
            note_step()

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
        state = self._amp.backend.training.read_state()
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


def custom_fwd(
    fwd: Callable[..., Any] | None = None,
    *,
    cast_inputs: Any = None,
    device_type: Any = None,  # noqa: ARG001
) -> Any:
    """Decorate the ``forward`` of an ``autograd.Function``.

    Args:
        fwd: the method.
        cast_inputs: inside autocast, floating-point arguments are cast to this dtype and the body runs without it.
        device_type: taken as torch.amp's; the device is that of the arguments.
    """
    if fwd is None:
        return functools.partial(custom_fwd, cast_inputs=cast_inputs)
    return _by_device(fwd, functools.partial(torch.amp.custom_fwd, cast_inputs=cast_inputs))


def custom_bwd(
    bwd: Callable[..., Any] | None = None,
    *,
    device_type: Any = None,  # noqa: ARG001
) -> Any:
    """Decorate the ``backward`` of an ``autograd.Function``: it runs in the state that its forward ran in.

    Args:
        bwd: the method.
        device_type: taken as torch.amp's; the device is that of the arguments.
    """
    return custom_bwd if bwd is None else _by_device(bwd, torch.amp.custom_bwd)


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
