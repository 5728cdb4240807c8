"""``amp_function`` on MXNet: functions, and ``autograd.Function`` classes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from unifiedamp.backend import errors

from ..mxnet_api import autograd
from .autocast import Suspended
from .casts import cast_floats, current


def wrap_custom(target: Any, cast_inputs: str | None) -> Any:
    """Return ``target`` so that, inside a region, its inputs are cast and its body runs without casts.

    Raises:
        UnsupportedError: a class that is no ``mxnet.autograd.Function``.
    """
    if not isinstance(target, type):
        return _wrapped(target, cast_inputs)
    if not issubclass(target, autograd.Function):
        raise errors.UnsupportedError(
            f"amp_function: {target.__name__} is no mxnet.autograd.Function; MXNet runs other custom operators on "
            "separate threads, outside every region"
        )
    target.__call__ = _wrapped(target.__call__, cast_inputs)  # type: ignore[method-assign]  # for all its objects
    return target


def _wrapped(function: Callable[..., Any], cast_inputs: str | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current.table is None or cast_inputs is None:
            return function(*args, **kwargs)
        args = tuple(cast_floats(arg, cast_inputs) for arg in args)
        kwargs = {name: cast_floats(value, cast_inputs) for name, value in kwargs.items()}
        with Suspended():
            return function(*args, **kwargs)

    return call
