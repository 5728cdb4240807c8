"""Functions of the user's own under O1: decorators, and the same by module and name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from unifiedamp.errors import ConfigError

from .forward import casts_are_on
from .options import HALF
from .state import amp_state

_NARROW = (torch.float32, *HALF)


def half_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that O1 runs with its floating-point tensors in 16 bits."""
    return _casting(fn, lambda _: _half())


def float_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that O1 runs with its floating-point tensors in float32."""
    return _casting(fn, lambda _: torch.float32)


def promote_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that O1 runs with its floating-point tensors in the widest dtype among them."""
    return _casting(fn, _widest)


def register_half_function(module: Any, name: str) -> None:
    """Replace ``module.name`` by its :func:`half_function`; ``module`` is a module or a class."""
    _register(module, name, half_function, "register_half_function")


def register_float_function(module: Any, name: str) -> None:
    """Replace ``module.name`` by its :func:`float_function`."""
    _register(module, name, float_function, "register_float_function")


def register_promote_function(module: Any, name: str) -> None:
    """Replace ``module.name`` by its :func:`promote_function`."""
    _register(module, name, promote_function, "register_promote_function")


def _casting(fn: Callable[..., Any], choose: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return ``fn`` with its tensors cast and without autocast inside, where O1's casts are on."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = choose((args, kwargs)) if casts_are_on() else None
        if dtype is None:
            return fn(*args, **kwargs)
        device = next((tensor.device.type for tensor in _tensors((args, kwargs))), "cpu")
        with torch.autocast(device, enabled=False):
            return fn(*_cast(args, dtype), **_cast(kwargs, dtype))

    return call


def _half() -> Any:
    options = amp_state.options("half_function")
    return options.cast_model_type or torch.float16


def _widest(arguments: Any) -> Any:
    found = [tensor.dtype for tensor in _tensors(arguments) if tensor.dtype in _NARROW]
    return functools.reduce(torch.promote_types, found) if found else None


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _NARROW else value
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_cast(item, dtype) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _register(module: Any, name: str, decorate: Callable[..., Any], call: str) -> None:
    plain = getattr(module, name, None)
    if not callable(plain):
        raise ConfigError(f"{call}: {getattr(module, '__name__', module)!r} has no function named {name!r}")
    plain = getattr(plain, "_amp_plain", plain)  # the last registration counts
    wrapped: Any = decorate(plain)
    wrapped._amp_plain = plain
    setattr(module, name, wrapped)
