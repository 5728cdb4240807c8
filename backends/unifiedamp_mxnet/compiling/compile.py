"""``amp.compile``: Gluon's whole-step form is hybridized models, run by the user's own Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unifiedamp.backend import SessionSpec, errors

from ..device.versions import gluon, mx
from ..precision.layers import children, walk

FLAGS: dict[str, Any] = {"static_alloc": True, "static_shape": True, "inline_limit": 2}
"""What ``hybridize`` is called with, unless ``backend_options.mxnet`` says otherwise."""

BULK = 64
"""Operators that mode "max" hands to the engine at once; MXNet's own number is 15."""

OPTIONS: dict[str, type] = {
    "static_alloc": bool,
    "static_shape": bool,
    "inline_limit": int,
    "forward_bulk_size": int,
    "backward_bulk_size": int,
    "layout_optimization": bool,
}
"""What ``backend_options.mxnet`` may hold: true or false, or a number of operators."""


def check_options(spec: SessionSpec) -> None:
    """Check ``backend_options.mxnet``.

    Raises:
        ConfigError: an unknown setting, or a value of the wrong type.
    """
    spec.check_options(OPTIONS, "mxnet")
    for name, value in spec.options.items():
        wanted = "true or false" if OPTIONS[name] is bool else "a whole number of at least 0"
        if type(value) is not OPTIONS[name] or value < 0:
            raise errors.ConfigError(f"backend_options.mxnet.{name} must be {wanted}, got {value!r}")


def hybridize_flags(options: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return the arguments of ``hybridize``."""
    bulk = {"forward_bulk_size": BULK, "backward_bulk_size": BULK} if mode == "max" else {}
    return (
        FLAGS | bulk | {key: value for key, value in options.items() if key in OPTIONS and key != "layout_optimization"}
    )


class Compiler:
    """Hybridizes the session's models, once it was asked to.

    Args:
        spec: for the options, and to warn through.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._flags = hybridize_flags(spec.options, spec.compile_mode)
        self.active = False

    def compile(self, target: Any, models: Iterable[Any], mode: str) -> Any:
        """Hybridize ``target`` itself when it is a block, else the prepared models; return what to call."""
        self._flags = hybridize_flags(self._spec.options, mode)
        if isinstance(target, gluon.Block):
            self.hybridize(target)
            return target
        if not callable(target):
            raise errors.WrongObjectError(f"amp.compile takes a function or a gluon.Block, got {type(target).__name__}")
        self.active = True
        for model in models:
            self.hybridize(model)
        return _in_bulk(target) if mode == "max" else target

    def hybridize(self, model: Any) -> None:
        """Hybridize a model; blocks that the user hybridized keep their own settings and graphs."""
        plain = [path or type(model).__name__ for path, block in walk(model) if not hybrid(block)]
        if plain:
            self._spec.warn(
                f"amp.compile: {errors.first_names(plain)} are no HybridBlocks and stay imperative; what is hybrid "
                "below them is compiled",
                errors.PolicyWarning,
            )
        for block in _tops(model):
            if not block._active:
                block.hybridize(True, **self._flags)


def _in_bulk(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``step`` with the operators outside the hybridized graphs (update, finite check) run in bulk too."""

    @functools.wraps(step)
    def bulked(*args: Any, **kwargs: Any) -> Any:
        with mx.engine.bulk(BULK):
            return step(*args, **kwargs)

    return bulked


def hybrid(block: Any) -> bool:
    """Tell whether Gluon can trace the block."""
    return isinstance(block, gluon.HybridBlock)


def _tops(model: Any) -> Iterable[Any]:
    """Yield the topmost hybrid blocks."""
    if hybrid(model):
        yield model
        return
    for _, child in children(model):
        yield from _tops(child)
