"""The names by which layers and variables of Keras models are saved.

Keras numbers layers without a name by all that the process made before ("dense_7"), and Keras 3 variables too
("variable_7"), so that the same model has other names in another process, or where it is made again. States are saved
by names that do not depend on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

from .._types import Layer, Model, Named, Variable
from ..internals import native
from .layers import Names, original_class, own_trainable, parameters, walk, weight_name

KERAS_2_STEMS = {"Functional": "model"}
"""Class → what Keras 2 numbers its names by, where that is neither the class's name nor "private" with it."""

DIRECTIONS = ("", "forward_", "backward_")
"""What ``Bidirectional`` begins the names of its layers with."""


def saved_paths(model: Model) -> list[str]:
    """Return the paths of a model's layers, in the order of :func:`.layers.walk`."""
    return [path for path, _ in walk(model, names=saved_names([model]))]


def saved_parameters(models: Sequence[Model], own: Callable[[Layer], list[Variable]] = own_trainable) -> Named:
    """See :func:`.layers.parameters`."""
    return parameters(models, own, saved_names(models))


def saved_names(models: Sequence[Model]) -> Names:
    """Return the names of models and their layers, and those of variables without a name.

    Keras's numbers of one class become 0, 1, 2, … in the same order, as in a process that makes nothing else: of
    "dense_7" and "dense_9", "dense" and "dense_1".
    """
    layers = [layer for model in models for _, layer in walk(model)]
    automatic = {layer.name: found for layer in layers if (found := _automatic(layer)) is not None}
    names = _numbered_anew(automatic, {layer.name for layer in layers} - automatic.keys())
    return {**{id(layer): names.get(layer.name, layer.name) for layer in layers}, **_variable_names(models)}


def _variable_names(models: Sequence[Model]) -> Names:
    # Keras 2 does not number variables; those of Keras 3 alone have a path.
    variables = [native(each) for model in models for each in model.weights if hasattr(each, "path")]
    own = {id(each): weight_name(each) for each in variables}
    numbers = {name: found for name in own.values() if (found := re.fullmatch(r"variable(?:_(\d+))?", name))}
    names = _numbered_anew({name: ("variable", int(found[1] or 0)) for name, found in numbers.items()}, set())
    return {key: names[name] for key, name in own.items() if name in names}


def _numbered_anew(automatic: Mapping[str, tuple[str, int]], given: Set[str]) -> dict[str, str]:
    """Return Keras's name → the one with a number that is the model's.

    Args:
        automatic: Keras's name → what it was made of, and its number.
        given: names that are taken.
    """
    names: dict[str, str] = {}
    counts = Counter[str]()
    for name, (stem, _) in sorted(automatic.items(), key=lambda item: item[1][1]):
        while (saved := f"{stem}_{counts[stem]}" if counts[stem] else stem) in given:
            counts[stem] += 1
        counts[stem] += 1
        names[name] = saved
    return names


def _automatic(layer: Layer) -> tuple[str, int] | None:
    """Return what Keras made a layer's name of, its class and a number; None where the user gave it one."""
    kind = original_class(layer).__name__
    stem = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)).lower()
    stems = (stem, KERAS_2_STEMS.get(kind, f"private{stem}"))
    head, _, number = layer.name.rpartition("_")
    for each in (f"{direction}{stem}" for direction in DIRECTIONS for stem in stems):
        if layer.name == each:
            return each, 0
        if head == each and number.isdecimal():
            return each, int(number)
    return None
