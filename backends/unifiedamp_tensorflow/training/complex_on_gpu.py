"""Complex parameters on a GPU: TensorFlow ends the process where it adds to one there, unless XLA compiles that."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Variable
from ..distributed.replicas import first_copy
from ..internals import under_xla

GPU = "GPU"
"""In the names of the devices where it does; https://github.com/tensorflow/tensorflow/issues/105367."""


def complex_on_gpu(variables: Mapping[str, Variable]) -> tuple[str, ...]:
    """Return the names of complex variables on a GPU."""
    return tuple(
        name for name, each in variables.items() if each.dtype.is_complex and GPU in first_copy(each).device
    )  # fmt: skip


def refuse_addition(names: tuple[str, ...]) -> None:
    """Refuse to add to variables (names of :func:`complex_on_gpu`) where XLA does not compile the addition.

    Raises:
        UnsupportedError: there are some.
    """
    if names and (tf.executing_eagerly() or not under_xla(tf.compat.v1.get_default_graph())):
        raise errors.UnsupportedError(
            f"complex parameter {names[0]!r}: TensorFlow ends the process when an optimizer or a sum of micro-batches "
            f"adds to a complex variable on a GPU (TensorFlow {tf.__version__}; its issue 105367); let XLA compile the "
            "step with amp.compile and compile='max', or make the model on the CPU"
        )
