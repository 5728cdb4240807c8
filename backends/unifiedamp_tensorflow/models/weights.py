"""A model's weights as float32 arrays (complex64 for complex ones), by layer path and the variable's own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from unifiedamp.backend import Weights

from .._types import Model, Named, Optimizer, Variable
from ..device.arrays import read_variable, wide_dtype
from ..precision import layers
from . import optimizer_state

MasterOf: TypeAlias = "Callable[[Variable], Variable | None]"
"""A variable → its float32 master, None where it has none."""


class TensorFlowWeights(Weights):
    """Reads and writes the true weights of a session's models; under mixed policies these are the variables.

    Args:
        master_of: returns the master of a variable.
    """

    means = "by layer path and variable name"

    def __init__(self, master_of: MasterOf) -> None:
        self._master_of = master_of

    def read(self, model: Model) -> dict[str, Any]:
        return self.read_models([model])

    def read_models(self, models: Sequence[Model]) -> dict[str, Any]:
        """Return the weights of several models, by the names that gradients of a session have."""
        true = {name: self._true(variable) for name, variable in _floating(models).items()}
        return {name: read_variable(variable, wide_dtype(variable)) for name, variable in true.items()}

    def write(self, model: Model, weights: Mapping[str, Any]) -> None:
        for name, variable in _floating([model]).items():
            variable.assign(tf.cast(weights[name], variable.dtype))
            master = self._master_of(variable)
            if master is not None:
                master.assign(weights[name])

    def read_optimizer(self, optimizer: Optimizer, models: Sequence[Model]) -> dict[str, Any]:
        return optimizer_state.read(optimizer, models)

    def check_optimizer(self, optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
        optimizer_state.check(optimizer, models, state)

    def write_optimizer(self, optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
        optimizer_state.write(optimizer, models, state)

    def _true(self, variable: Variable) -> Variable:
        master = self._master_of(variable)
        return variable if master is None else master


def _floating(models: Sequence[Model]) -> Named:
    named = layers.parameters(models, layers.own_weights)
    return {
        name: variable for name, variable in named.items() if variable.dtype.is_floating or variable.dtype.is_complex
    }
