"""The layers of a Keras model and their variables, by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import tensorflow as tf

from .._types import Layer, Model, Named, Variable
from ..internals import children, descendants, native

Names = Mapping[int, str]
"""Id of a layer → its name in paths; of a ``tf.Variable`` → its own name, where that is not the one it has."""


def walk(
    layer: Layer, path: str = "", seen: set[int] | None = None, names: Names | None = None
) -> Iterator[tuple[str, Layer]]:
    """Yield (path, layer) for a model and all its layers; components of a path are layer names joined by dots.

    Args:
        layer: a model.
        path, seen: of what was walked before.
        names: of layers; None for those that Keras has.
    """
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path, layer
    for child in children(layer):
        name = child.name if names is None else names[id(child)]
        yield from walk(child, f"{path}.{name}" if path else name, seen, names)


def own_trainable(layer: Layer) -> list[Variable]:
    """Return the trainable variables that belong to ``layer`` itself, as ``tf.Variable``."""
    inner = {id(native(v)) for child in descendants(layer) for v in child.trainable_weights}
    return [v for v in map(native, layer.trainable_weights) if id(v) not in inner]


def own_weights(layer: Layer) -> list[Variable]:
    """Return all variables that belong to ``layer`` itself, as ``tf.Variable``."""
    inner = {id(native(v)) for child in descendants(layer) for v in child.weights}
    return [v for v in map(native, layer.weights) if id(v) not in inner]


def keras_variables(models: Iterable[Model]) -> dict[int, Variable]:
    """Return id of a trainable ``tf.Variable`` → Keras's variable of it, which has the constraint in Keras 3."""
    found = (variable for model in models for _, layer in walk(model) for variable in layer.trainable_weights)
    return {id(native(variable)): variable for variable in found}


def last_function(layer: Layer) -> str:
    """Return the name of the activation function that a layer applies last; empty for none."""
    known = isinstance(layer, (tf.keras.layers.Dense, tf.keras.layers.Activation)) or hasattr(layer, "kernel_size")
    function = getattr(layer, "activation", None) if known else None
    name = str(getattr(function, "__name__", ""))
    return "" if name == "linear" else name


def parameters(
    models: Iterable[Model], own: Callable[[Layer], list[Variable]] = own_trainable, names: Names | None = None
) -> Named:
    """Return name → trainable ``tf.Variable`` over all models; names are layer paths and the variable's own name.

    Args:
        models: Keras models.
        own: gives a layer's variables; :func:`own_weights` for all of them.
        names: of layers and variables; None for those that Keras has.
    """
    found: Named = {}
    known: set[int] = set()
    for model in models:
        shown = model.name if names is None else names[id(model)]
        for path, layer in walk(model, names=names):
            for weight in own(layer):
                if id(weight) not in known:
                    known.add(id(weight))
                    own_name = (names or {}).get(id(weight), weight_name(weight))
                    found[_free_name(found, shown, f"{path}.{own_name}" if path else own_name)] = weight
    return found


def weight_name(weight: Variable) -> str:
    """Return the own name of a ``tf.Variable``, without those of layers."""
    return weight.name.partition(":")[0].rpartition("/")[2]


def _free_name(taken: Named, model: str, name: str) -> str:
    if name in taken:
        name = f"{model}.{name}"
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def original_class(layer: Layer) -> type:
    """Return the class that a layer had before it was prepared."""
    return original_of(type(layer))


def original_of(kind: type) -> type:
    """Return the class that a prepared layer's class stands for; any other as it is."""
    return getattr(kind, "_unifiedamp_original", kind)
