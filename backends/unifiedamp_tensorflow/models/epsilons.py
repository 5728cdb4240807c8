"""The epsilons of layers and optimizers, and the dtype in which they are added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from unifiedamp.backend import recording

from .._types import Model, Optimizer
from ..internals import trained_variables
from ..precision import layers
from ..precision.operations import NORM_LAYERS

NAMES = ("eps", "epsilon", "_eps", "_epsilon", "variance_epsilon")


def epsilons(models: Iterable[Model], optimizers: Iterable[Optimizer]) -> Iterator[recording.Epsilon]:
    """Yield the epsilons of layers, then those of optimizers (added in the dtype of their variables).

    Keras's own normalizing layers add theirs in float32 whatever their inputs are.
    """
    for model in models:
        for path, layer in layers.walk(model):
            kind: Any = layers.original_class(layer)
            own = kind.__module__.split(".")[0] in ("keras", "tf_keras") and kind.__name__ in NORM_LAYERS
            dtype = "float32" if own else kind.compute_dtype.fget(layer)
            for name, value in _of(layer):
                yield recording.Epsilon(path, name, value, dtype)
    for optimizer in optimizers:
        variables = trained_variables(optimizer)
        added_in: Any = variables[0].dtype if variables else "float32"
        for name, value in _of(optimizer):
            yield recording.Epsilon(type(optimizer).__name__, name, value, getattr(added_in, "name", added_in))


def _of(obj: object) -> Iterator[tuple[str, float]]:
    for name in NAMES:
        value = vars(obj).get(name)
        if isinstance(value, float) and value > 0:
            yield name, value
