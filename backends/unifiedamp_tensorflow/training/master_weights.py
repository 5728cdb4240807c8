"""Float32 master weights: what a Keras optimizer trains where a model's variables have 16 bits.

Masters are variables of the optimizer, which is built over them, and so are saved and loaded with it. Gradients are
cast to float32 when they arrive; after a step that was applied, the model's variables are set to the rounded masters.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from .. import patches
from .._types import Gradient, Named, Optimizer, Variable
from ..distributed.replicas import Replicas
from ..internals import constrain, exclude_alike, native

LOW = (tf.float16, tf.bfloat16)


class MasterWeights:
    """The master weights of one optimizer.

    Args:
        optimizer: a Keras optimizer that has no variables yet; it is built here.
        named: name → the model's parameter, as Keras knows it.
        replicas: where the model trains; each has copies of both.

    Attributes:
        applied: name → what the optimizer trains: the master where there is one, else the parameter itself.
        trained: the same as ``tf.Variable``.
    """

    def __init__(self, optimizer: Optimizer, named: Named, replicas: Replicas) -> None:
        self._replicas = replicas
        params = {name: native(variable) for name, variable in named.items()}
        self._model_params = {name: variable for name, variable in params.items() if variable.dtype in LOW}
        self.applied: Named = {
            name: _master(optimizer, variable) if name in self._model_params else variable
            for name, variable in named.items()
        }
        self.trained: Named = {name: native(variable) for name, variable in self.applied.items()}
        optimizer.build(list(self.applied.values()))
        # Keras 2 lists no variable that it did not make for a slot; as an attribute, checkpoints find them.
        patches.track(optimizer, "_amp_masters", [self.trained[name] for name in self._model_params])

    def master_params_to_model_params(self, names: Iterable[str]) -> None:
        """Set the model's variables of these names to their rounded masters, on each replica to its own."""
        for name in names:
            if name in self._model_params:
                self._replicas.update(self._model_params[name], _set_rounded, (self.trained[name],))


def widened(gradient: Gradient) -> Gradient:
    """Return a gradient in float32 where it has 16 bits; sparse ones too."""
    return tf.cast(gradient, tf.float32) if gradient.dtype in LOW else gradient


def _set_rounded(param: Variable, master: Variable) -> None:
    param.assign(tf.cast(master, param.dtype))


def _master(optimizer: Optimizer, variable: Variable) -> Variable:
    name = f"{variable.name.partition(':')[0].rpartition('/')[2]}_master"
    master = optimizer.add_variable(shape=variable.shape, dtype="float32", initializer="zeros", name=name)
    master.assign(tf.cast(native(variable), tf.float32))
    constrain(master, variable.constraint)
    exclude_alike(optimizer, variable, master)
    return master
