"""Keras layers under a policy: walking them, setting their dtype policy, and following regions.

A prepared layer gets a subclass of its own class (same name, same ``__class__``, so that saving and cloning see the
original) whose compute dtype looks at the thread's region; a prepared model's ``__call__`` also fills in ``training``
and casts its outputs. ``detach`` gives the class back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from .autocast import DISABLED, thread

PINNED = "_unifiedamp_pinned"
OUTPUT = "_unifiedamp_output"
CALL = "_unifiedamp_call"
AGAIN = "_unifiedamp_again"
FOLLOWING = ("float32", "float16", "bfloat16")
"""Compute dtypes that a region may replace; a layer that works in integers or float64 means it."""


def walk(layer: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (path, layer) for a model and all its layers; components of a path are layer names joined by dots."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path, layer
    for child in layer._flatten_layers(include_self=False, recursive=False):
        yield from walk(child, f"{path}.{child.name}" if path else child.name, seen)


def own_trainable(layer: Any) -> list[Any]:
    """Return the trainable variables that belong to ``layer`` itself, as ``tf.Variable``."""
    inner = {id(native(v)) for child in layer._flatten_layers(include_self=False) for v in child.trainable_weights}
    return [v for v in map(native, layer.trainable_weights) if id(v) not in inner]


def own_weights(layer: Any) -> list[Any]:
    """Return all variables that belong to ``layer`` itself, as ``tf.Variable``."""
    inner = {id(native(v)) for child in layer._flatten_layers(include_self=False) for v in child.weights}
    return [v for v in map(native, layer.weights) if id(v) not in inner]


def native(variable: Any) -> Any:
    """Return the ``tf.Variable`` of a Keras variable."""
    value = getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def parameters(models: Any, own: Callable[[Any], list[Any]] = own_trainable) -> dict[str, Any]:
    """Return name → trainable ``tf.Variable`` over all models; names are layer paths and the variable's own name.

    Args:
        models: Keras models.
        own: gives a layer's variables; :func:`own_weights` for all of them.
    """
    found: dict[str, Any] = {}
    known: set[int] = set()
    for model in models:
        for path, layer in walk(model):
            for weight in own(layer):
                if id(weight) not in known:
                    known.add(id(weight))
                    found[_free_name(found, model, path, weight)] = weight
    return found


def _free_name(taken: dict[str, Any], model: Any, path: str, weight: Any) -> str:
    name = weight.name.partition(":")[0].rpartition("/")[2]
    name = f"{path}.{name}" if path else name
    if name in taken:
        name = f"{model.name}.{name}"
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def attach(layer: Any, *, pinned: bool, output_dtype: str | None, call: Any = None) -> None:
    """Let ``layer`` follow regions.

    Args:
        layer: a Keras layer or model.
        pinned: it keeps its dtype in regions of another policy.
        output_dtype: for a model that users call, the dtype of its outputs; None for a layer.
        call: stands before the layer's own ``call``: given the layer and its input, it returns the output, or None
            to leave it to the layer.
    """
    object.__setattr__(layer, PINNED, pinned)
    if output_dtype is not None:
        object.__setattr__(layer, OUTPUT, output_dtype)
    if call is not None:
        object.__setattr__(layer, CALL, call)
    _follow(layer)


def attach_again(layer: Any, again: Any) -> None:
    """Have ``again(layer, call, args, kwargs)`` run the layer's ``call``, whose results it need not keep."""
    vars(layer).setdefault(PINNED, True)
    object.__setattr__(layer, AGAIN, again)
    _follow(layer)


def _follow(layer: Any) -> None:
    roles = [name in vars(layer) for name in (OUTPUT, CALL, AGAIN)]
    set_class(layer, _following(original_class(layer), *roles))


def detach(layer: Any) -> None:
    """Give ``layer`` its class back."""
    set_class(layer, original_class(layer))
    for name in (PINNED, OUTPUT, CALL, AGAIN):
        vars(layer).pop(name, None)


def set_class(layer: Any, kind: type) -> None:
    """Have ``layer`` be of another class of the same layout."""
    # Our subclasses show the original as __class__, so the assignment must go below that property.
    vars(object)["__class__"].__set__(layer, kind)


def original_class(layer: Any) -> type:
    """Return the class that ``layer`` had before :func:`attach`."""
    return original_class_of(type(layer))


def original_class_of(kind: type) -> type:
    """Return the class that a following one stands for; any other as it is."""
    return getattr(kind, "_unifiedamp_original", kind)


@functools.cache
def _following(original: type, is_model: bool, own_call: bool, again: bool) -> type:
    body: dict[str, Any] = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__class__": property(lambda _: original),
        "_unifiedamp_original": original,
        "compute_dtype": property(lambda self: _compute_dtype(self, original)),
    }
    if not hasattr(original, "dtype_policy") or hasattr(original, "_set_dtype_policy"):
        body |= _cached_dtype(original)
    if own_call:
        body["call"] = _layer_call(original)
    if again:
        body["call"] = _call_again(body.get("call", original.call))
    if is_model:
        body["__call__"] = _model_call(original)
    return type(original)(original.__name__, (original,), body)


def _compute_dtype(layer: Any, original: Any) -> str:
    own = original.compute_dtype.fget(layer)
    forced = "bfloat16" if thread.compute == "float8" else thread.compute
    if forced is None or own not in FOLLOWING:
        return own  # type: ignore[no-any-return]
    if forced == DISABLED:
        return layer.variable_dtype  # type: ignore[no-any-return]
    return own if vars(layer)[PINNED] else forced


def _cached_dtype(original: Any) -> dict[str, Any]:
    """Keras 2 reads its compute dtype from two private names as well."""

    def cached(layer: Any) -> Any:
        name = layer.compute_dtype
        return None if name is None else tf.as_dtype(name)

    def store(layer: Any, value: Any) -> None:
        vars(layer)["_compute_dtype_object"] = value

    return {
        "_compute_dtype": property(lambda self: _compute_dtype(self, original)),
        "_compute_dtype_object": property(cached, store),
    }


def _layer_call(original: Any) -> Any:
    @functools.wraps(original.call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = vars(self)[CALL](self, args[0]) if args else None
        return original.call(self, *args, **kwargs) if outputs is None else outputs

    return call


def _call_again(run: Any) -> Any:
    @functools.wraps(run)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[AGAIN](self, run, args, kwargs)

    return call


def _model_call(original: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.calling:
            return original.__call__(self, *args, **kwargs)
        if thread.training is not None and kwargs.get("training") is None and not _has_flag(args):
            kwargs["training"] = thread.training
        thread.calling = True
        try:
            outputs = original.__call__(self, *args, **kwargs)
        finally:
            thread.calling = False
        return _cast(outputs, vars(self)[OUTPUT])

    return __call__


def _has_flag(args: Any) -> bool:
    return any(isinstance(value, bool) for value in args[1:])


def _cast(outputs: Any, dtype: str) -> Any:
    if isinstance(outputs, tf.Tensor):
        return tf.cast(outputs, dtype) if outputs.dtype.is_floating else outputs
    if isinstance(outputs, (list, tuple, dict)):
        return tf.nest.map_structure(lambda value: _cast(value, dtype), outputs)
    return outputs
