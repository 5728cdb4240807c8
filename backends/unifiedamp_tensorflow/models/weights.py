"""A model's weights as float32 arrays, by layer path and the variable's own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..precision import layers

MasterOf = Callable[[Any], Any]
"""A variable → its float32 master, None where it has none."""


def read(model: Any, master_of: MasterOf) -> dict[str, Any]:
    """Return name → float32 array; trainable or not, but floating-point."""
    found = {name: (variable, master_of(variable)) for name, variable in _variables(model).items()}
    return {
        name: np.array(tf.cast(variable if master is None else master, tf.float32))
        for name, (variable, master) in found.items()
    }


def write(model: Any, master_of: MasterOf, weights: Mapping[str, Any]) -> None:
    """Set the variables, and masters where there are some."""
    for name, variable in _variables(model).items():
        variable.assign(tf.cast(weights[name], variable.dtype))
        master = master_of(variable)
        if master is not None:
            master.assign(weights[name])


def _variables(model: Any) -> dict[str, Any]:
    named = layers.parameters([model], layers.own_weights)
    return {name: variable for name, variable in named.items() if variable.dtype.is_floating}
