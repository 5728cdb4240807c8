"""The update of a step over replicas, where XLA compiles: one program on each device, in place of several operations
for each variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from .. import patches
from .._types import Gradient, Optimizer, Strategy, Tensor, Variable
from .replica_programs import compiled_by_xla, needs_host

UPDATE = "_distributed_tf_update_step"
"""Keras 3's method that updates variables on all replicas: strategy, (gradient, variable) pairs, learning rate."""


@contextmanager
def updates_by_xla(optimizer: Optimizer) -> Iterator[None]:
    """Have XLA compile the updates of a Keras 3 optimizer inside, where it compiles the replicas' programs.

    Sparse gradients, and an ``update_step`` that asks the host, are left to TensorFlow.
    """
    native = getattr(optimizer, UPDATE, None)
    if native is None or not compiled_by_xla():
        yield
        return
    with patches.attributes(optimizer, **{UPDATE: _update_by_xla(optimizer, native)}):
        yield


def _update_by_xla(optimizer: Optimizer, native: Callable[..., None]) -> Callable[..., None]:
    def update(strategy: Strategy, pairs: Sequence[tuple[Gradient, Variable]], learning_rate: Tensor) -> None:
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if any(_is_sparse(gradient) for gradient in gradients):
            native(strategy, pairs, learning_rate)
            return

        def on_device(_first: Variable, rate: Any, *gradients: Tensor) -> None:
            def update_all(*gradients: Tensor) -> None:
                # Here TensorFlow takes a mirrored variable for its copy on this device.
                for gradient, variable in zip(gradients, variables, strict=True):
                    optimizer.update_step(gradient, variable, rate)

            program = tf.function(update_all, autograph=False, jit_compile=True)
            if any(map(needs_host, program.get_concrete_function(*gradients).graph.get_operations())):
                update_all(*gradients)
            else:
                program(*gradients)

        strategy.extended.update(variables[0], on_device, args=(learning_rate, *gradients), group=False)

    return update


def _is_sparse(gradient: Any) -> bool:
    parts = gradient.values if isinstance(gradient, tf.distribute.DistributedValues) else (gradient,)
    return any(isinstance(part, tf.IndexedSlices) for part in parts)
