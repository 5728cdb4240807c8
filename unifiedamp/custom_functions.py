"""``amp_function``: custom operations that say which dtype they want inside an autocast region."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from .config import plugins
from .errors import ConfigError
from .names import Dtype
from .policy import canonical_dtype

F = TypeVar("F", bound=Callable[..., Any])


@overload
def amp_function(target: F, *, cast_inputs: Dtype | str | None = None) -> F: ...
@overload
def amp_function(target: None = None, *, cast_inputs: Dtype | str | None = None) -> Callable[[F], F]: ...
def amp_function(target: Any = None, *, cast_inputs: str | None = None) -> Any:
    """Mark a function or a framework's custom-operation class for use inside autocast (a decorator).

    Inside an enabled autocast region floating-point tensor arguments, also those in nested lists, tuples and mappings,
    are cast to ``cast_inputs`` and the body runs without autocast; outside a region nothing changes. On torch an
    ``autograd.Function`` class may be decorated: its forward and backward then run under the same rule
    (``torch.amp.custom_fwd`` and ``custom_bwd``).

    Args:
        target: the function or class.
        cast_inputs: "float32", "float16", "bfloat16", or None to run in the region's state.

    Raises:
        PolicyError: ``cast_inputs`` is none of these.
        ConfigError: ``target`` is not callable.
    """
    if cast_inputs is not None:
        cast_inputs = canonical_dtype(cast_inputs, "amp_function: cast_inputs")
    if target is None:
        return functools.partial(amp_function, cast_inputs=cast_inputs)
    if not callable(target):
        raise ConfigError(f"amp_function decorates a function or a class, got {target!r}")
    if isinstance(target, type):
        return _backend_of(target.__mro__).custom_function(target, cast_inputs)
    wrapped: dict[Any, Any] = {}

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        backend = _backend_of([base for kind in _kinds((args, kwargs)) for base in kind.__mro__])
        if backend not in wrapped:
            wrapped[backend] = backend.custom_function(target, cast_inputs)
        return wrapped[backend](*args, **kwargs)

    return call


def _kinds(value: object) -> Iterator[type]:
    """Yield the classes of what nested lists, tuples and mappings hold."""
    if isinstance(value, (list, tuple, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _kinds(each)
    else:
        yield type(value)


def _backend_of(types: Any) -> Any:
    """Return the Backend class of the loaded framework that one of ``types`` comes from."""
    roots = {base.__module__.partition(".")[0] for base in types}
    for name in plugins.backend_entry_points():
        plugin = plugins.load_plugin(name)
        if plugin.framework in sys.modules and roots & {plugin.framework, *plugin.modules}:
            return plugins.load_backend(name)
    raise ConfigError(
        f"amp_function: no backend's framework owns any of these types (modules: {', '.join(sorted(roots))})"
    )
