"""A Keras optimizer's variables as arrays, under their numbers; the learning rate is a setting, and left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Model, Optimizer, Variable
from ..internals import native


def read(optimizer: Optimizer, models: Sequence[Model]) -> dict[str, Any]:
    """Return "0003" → array, the count of steps included."""
    return {name: _array(variable) for name, variable in _variables(optimizer, models).items()}


def _array(variable: Variable) -> Any:
    value = tf.convert_to_tensor(variable)
    return (tf.cast(value, tf.float32) if value.dtype.size == 2 else value).numpy().copy()


def check(optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
    """Check that a state is of these variables.

    Raises:
        CheckpointError: a number or shape differs.
    """
    variables = _variables(optimizer, models)
    if state.keys() != variables.keys():
        raise errors.CheckpointError(
            f"the optimizer has {len(variables)} variables, the checkpoint {len(state)}: it is of another one"
        )
    for name, value in state.items():
        if tuple(value.shape) != tuple(variables[name].shape):
            raise errors.CheckpointError(
                f"the optimizer's variable {name!r} has shape {tuple(variables[name].shape)}, the checkpoint's "
                f"{tuple(value.shape)}"
            )


def write(optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
    """Set the variables."""
    for name, variable in _variables(optimizer, models).items():
        variable.assign(tf.cast(state[name], variable.dtype))


def _variables(optimizer: Any, models: Sequence[Any]) -> dict[str, Variable]:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "built", getattr(inner, "_built", False)):  # with master weights, it is built for those
        inner.build([variable for model in models for variable in model.trainable_variables])
    rate = getattr(inner, "_learning_rate", None)
    kept = [variable for variable in inner.variables if variable is not rate]
    return {f"{number:04d}": native(variable) for number, variable in enumerate(kept)}
