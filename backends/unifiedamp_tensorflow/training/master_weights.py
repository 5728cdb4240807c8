"""Float32 master weights: what a Keras optimizer trains where a model's own variables have 16 bits.

Masters are variables of the optimizer, which is built over them, and so are saved and loaded with it. Gradients become
float32 as they come in; after a step that was applied, the model's variables are set to the masters, rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from ..precision.layers import native

LOW = (tf.float16, tf.bfloat16)


class Masters:
    """The masters of one optimizer.

    Args:
        optimizer: a Keras optimizer that has no variables yet; it is built here.
        named: name → the model's parameter.

    Attributes:
        trained: name → what the optimizer trains: the master where there is one, else the parameter itself.
    """

    def __init__(self, optimizer: Any, named: Mapping[str, Any]) -> None:
        self._low = {name: variable for name, variable in named.items() if variable.dtype in LOW}
        self.trained = {
            name: native(_master(optimizer, variable)) if name in self._low else variable
            for name, variable in named.items()
        }
        optimizer.build(list(self.trained.values()))
        # Keras 2 lists no variable that it did not make for a slot; as an attribute, checkpoints find them.
        optimizer._amp_masters = [self.trained[name] for name in self._low]

    def publish(self, names: Iterable[str]) -> None:
        """Set the model's variables of these names to their masters."""
        for name in names:
            if name in self._low:
                self._low[name].assign(tf.cast(self.trained[name], self._low[name].dtype))

    def of(self, variable: Any) -> Any:
        """Return the master of one of the model's variables, None where it has none."""
        return next((self.trained[name] for name, low in self._low.items() if low is variable), None)


def widened(gradient: Any) -> Any:
    """Return a gradient in float32, sparse ones too; None stays None."""
    return tf.cast(gradient, tf.float32) if gradient is not None and gradient.dtype in LOW else gradient


def _master(optimizer: Any, variable: Any) -> Any:
    name = f"{variable.name.partition(':')[0].rpartition('/')[2]}_master"
    master = optimizer.add_variable(shape=variable.shape, dtype="float32", initializer="zeros", name=name)
    master.assign(tf.cast(variable, tf.float32))
    return master
