"""A model's weights as float32 arrays, by layer path and the variable's own name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from . import layers


def read(model: Any) -> dict[str, Any]:
    """Return name → float32 array; trainable or not, but floating-point."""
    return {name: np.array(tf.cast(variable, tf.float32)) for name, variable in _variables(model).items()}


def write(model: Any, weights: Mapping[str, Any]) -> None:
    """Set the variables."""
    for name, variable in _variables(model).items():
        variable.assign(tf.cast(weights[name], variable.dtype))


def _variables(model: Any) -> dict[str, Any]:
    named = layers.parameters([model], layers.own_weights)
    return {name: variable for name, variable in named.items() if variable.dtype.is_floating}
