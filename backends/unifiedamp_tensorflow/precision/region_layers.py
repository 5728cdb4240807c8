"""Keras layers that follow autocast regions.

A prepared layer gets a subclass of its class (same name, same ``__class__``, so that saving and cloning see the
original) whose compute dtype depends on the thread's region; a prepared model's ``__call__`` also fills in ``training``
and casts its outputs. ``detach`` restores the class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import tensorflow as tf

from .. import patches
from .._types import Layer, Tensor
from ..internals import caches_dtype
from .autocast import DISABLED, thread
from .layers import original_class

PINNED = "_unifiedamp_pinned"
OUTPUT = "_unifiedamp_output"
AROUND = "_unifiedamp_around"
CALL = "_unifiedamp_call"
RECOMPUTE = "_unifiedamp_recompute"
FOLLOWING = ("float32", "float16", "bfloat16")
"""Compute dtypes that a region may replace; layers in integers or float64 keep theirs."""

LayerCall: TypeAlias = "Callable[[Any, Tensor], Tensor | None]"
"""Stands before a layer's own ``call``; returns None to leave the input to the layer."""
Around: TypeAlias = "Callable[[], AbstractContextManager[Any]]"
Recompute: TypeAlias = "Callable[[Any, Callable[..., Any], Any, Any], Any]"
"""Runs ``call`` of a layer: (layer, call, args, kwargs) → outputs."""


def attach(
    layer: Layer, *, pinned: bool, output_dtype: str | None, call: LayerCall | None = None, around: Around | None = None
) -> None:  # fmt: skip
    """Make ``layer`` follow regions.

    Args:
        layer: a Keras layer or model.
        pinned: it keeps its dtype in regions of another policy.
        output_dtype: for a model that users call, the dtype of its outputs; None for a layer.
        call: stands before the layer's own ``call``.
        around: makes a context for each call of a model by users and by Keras.
    """
    object.__setattr__(layer, PINNED, pinned)
    if output_dtype is not None:
        object.__setattr__(layer, OUTPUT, output_dtype)
        object.__setattr__(layer, AROUND, around or nullcontext)
    if call is not None:
        object.__setattr__(layer, CALL, call)
    else:
        vars(layer).pop(CALL, None)
    _follow(layer)


def attach_recomputation(layer: Layer, recompute: Recompute) -> None:
    """Make ``recompute`` run the layer's ``call``."""
    vars(layer).setdefault(PINNED, True)
    object.__setattr__(layer, RECOMPUTE, recompute)
    _follow(layer)


def _follow(layer: Layer) -> None:
    roles = [name in vars(layer) for name in (OUTPUT, CALL, RECOMPUTE)]
    patches.set_class(layer, _following(original_class(layer), *roles))


def detach(layer: Layer) -> None:
    """Restore the class of ``layer``."""
    patches.set_class(layer, original_class(layer))
    for name in (PINNED, OUTPUT, AROUND, CALL, RECOMPUTE):
        vars(layer).pop(name, None)


@functools.cache
def _following(original: Any, is_model: bool, own_call: bool, recomputes: bool) -> type:
    body: dict[str, Any] = {
        "_unifiedamp_original": original,
        "compute_dtype": property(lambda self: _compute_dtype(self, original)),
    }
    if caches_dtype(original):
        body |= _cached_dtype(original)
    if own_call:
        body["call"] = _layer_call(original)
    if recomputes:
        body["call"] = _recomputed_call(body.get("call", original.call))
    if is_model:
        body["__call__"] = _model_call(original)
    return patches.subclass(original, original, body)


def _compute_dtype(layer: Layer, original: Any) -> str:
    own: str = original.compute_dtype.fget(layer)
    forced = "bfloat16" if thread.compute == "float8" else thread.compute
    if forced is None or own not in FOLLOWING:
        return own
    if forced == DISABLED:
        return layer.variable_dtype
    return own if vars(layer)[PINNED] else forced


def _cached_dtype(original: Any) -> dict[str, Any]:
    """Keras 2 reads its compute dtype from two private names as well."""

    def cached(layer: Layer) -> Any:
        name = layer.compute_dtype
        return None if name is None else tf.as_dtype(name)

    def store(layer: Layer, value: object) -> None:
        vars(layer)["_compute_dtype_object"] = value

    return {
        "_compute_dtype": property(lambda self: _compute_dtype(self, original)),
        "_compute_dtype_object": property(cached, store),
    }


def _layer_call(original: Any) -> Callable[..., Any]:
    @functools.wraps(original.call)
    def call(self: Layer, *args: Any, **kwargs: Any) -> Any:
        outputs = vars(self)[CALL](self, args[0]) if args else None
        return original.call(self, *args, **kwargs) if outputs is None else outputs

    return call


def _recomputed_call(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(self: Layer, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[RECOMPUTE](self, run, args, kwargs)

    return call


def _model_call(original: Any) -> Callable[..., Any]:
    def __call__(self: Layer, *args: Any, **kwargs: Any) -> Any:
        if thread.calling:
            return original.__call__(self, *args, **kwargs)
        if thread.training is not None and kwargs.get("training") is None and not _has_flag(args):
            kwargs["training"] = thread.training
        thread.calling = True
        try:
            with vars(self)[AROUND]():
                outputs = original.__call__(self, *args, **kwargs)
        finally:
            thread.calling = False
        return _cast(outputs, vars(self)[OUTPUT])

    return __call__


def _has_flag(args: Sequence[object]) -> bool:
    return any(isinstance(value, bool) for value in args[1:])


def _cast(outputs: Any, dtype: str) -> Any:
    if isinstance(outputs, tf.Tensor):
        return tf.cast(outputs, dtype) if outputs.dtype.is_floating else outputs
    if isinstance(outputs, (list, tuple, dict)):
        return tf.nest.map_structure(lambda value: _cast(value, dtype), outputs)
    return outputs
