"""A model's weights as float32 arrays (complex64 for complex ones), by layer path and the variable's own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Weights

from .._types import Model, Named, Optimizer, Tensor, Variable
from ..device.arrays import read_variable, wide_dtype
from ..precision.layers import own_weights, parameters
from ..precision.saved_names import saved_parameters
from . import optimizer_state


class TensorFlowWeights(Weights):
    """Reads and writes the true weights of a session's models; under mixed policies these are the variables.

    Args:
        true_of: returns the true weights of a variable.
        set_true: sets them.
    """

    means = "by layer path and variable name"

    def __init__(self, true_of: Callable[[Variable], Tensor], set_true: Callable[[Variable, Tensor], None]) -> None:
        self._true_of, self._set_true = true_of, set_true

    def read(self, model: Model) -> dict[str, Any]:
        return self._read(saved_parameters([model], own_weights))

    def read_models(self, models: Sequence[Model]) -> dict[str, Any]:
        """Return the weights of several models, by the names that gradients of a session have: with Keras's numbers."""
        return self._read(parameters(models, own_weights))

    def _read(self, named: Named) -> dict[str, Any]:
        found = _floating(named).items()
        return {name: read_variable(self._true_of(variable), wide_dtype(variable)) for name, variable in found}

    def write(self, model: Model, weights: Mapping[str, Any]) -> None:
        for name, variable in _floating(saved_parameters([model], own_weights)).items():
            self._set_true(variable, tf.convert_to_tensor(weights[name]))

    def read_optimizer(self, optimizer: Optimizer, models: Sequence[Model]) -> dict[str, Any]:
        return optimizer_state.read(optimizer, models)

    def check_optimizer(self, optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
        optimizer_state.check(optimizer, models, state)

    def write_optimizer(self, optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
        optimizer_state.write(optimizer, models, state)


def _floating(named: Named) -> Named:
    return {
        name: variable for name, variable in named.items() if variable.dtype.is_floating or variable.dtype.is_complex
    }
