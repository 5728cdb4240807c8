"""Custom operations under autocast: ``torch.amp.custom_fwd`` and ``custom_bwd``, on the device of their tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from unifiedamp.backend import errors

from .casts import DTYPES, cast


def wrap_custom(target: Any, cast_inputs: str | None) -> Any:
    """Return ``target`` under the rule of ``amp_function``; an ``autograd.Function`` class is changed in place.

    Raises:
        UnsupportedError: a class that is no ``autograd.Function``, or one with ``setup_context``.
    """
    dtype = DTYPES[cast_inputs] if cast_inputs else None
    if not isinstance(target, type):
        return target if dtype is None else _wrap_plain(target, dtype)
    if not issubclass(target, torch.autograd.Function):
        raise errors.UnsupportedError(f"amp_function: {target.__name__} is not a torch.autograd.Function")
    if target.setup_context is not torch.autograd.Function.setup_context:
        raise errors.UnsupportedError(
            f"amp_function: {target.__name__} has setup_context, which torch.amp.custom_fwd does not know: "
            "give its forward the ctx argument instead"
        )
    wrappers = {"forward": _forward_on(dtype), "backward": _backward_on}
    for name, wrap in wrappers.items():
        setattr(target, name, staticmethod(_for_device(getattr(target, name), wrap)))
    return target


def _forward_on(dtype: torch.dtype | None) -> Callable[..., Any]:
    def wrap(forward: Callable[..., Any], device_type: str) -> Callable[..., Any]:
        wrapped: Callable[..., Any] = torch.amp.custom_fwd(forward, device_type=device_type, cast_inputs=dtype)
        return wrapped

    return wrap


def _backward_on(backward: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    wrapped: Callable[..., Any] = torch.amp.custom_bwd(backward, device_type=device_type)
    return wrapped


def _for_device(method: Callable[..., Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
    wrapped = functools.cache(functools.partial(wrap, method))

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapped(_device_type(args, kwargs))(*args, **kwargs)

    return call


def _wrap_plain(function: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        device_type = _device_type(args, kwargs)
        if not torch.is_autocast_enabled(device_type):
            return function(*args, **kwargs)
        with torch.autocast(device_type, enabled=False):
            return function(*cast(args, dtype), **cast(kwargs, dtype))

    return call


def _device_type(args: Any, kwargs: Any) -> str:
    values = torch.utils._pytree.tree_leaves((args, kwargs))
    return next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")
