"""What stands in the place of a variable of fewer bits while an optimizer's step updates it: a float32 value.

It has the calls of ``tf.Variable`` that optimizers make, is no variable, and needs no memory between steps.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .._types import Gradient, Tensor, Variable

OPERATORS = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__pow__",
    "__rpow__", "__neg__", "__abs__", "__matmul__", "__rmatmul__", "__lt__", "__le__", "__gt__", "__ge__",
    "__getitem__",
)  # fmt: skip

HIDDEN = ("handle", "_distributed_container")
"""What would lead to the bfloat16 variable, or to the container of its replicas."""


class Float32Value:
    """A float32 value that can be assigned to, with the name and the identity of a variable.

    Args:
        variable: a bfloat16 variable, or the bytes of a moment.
        key: by which the optimizer knows the variable.
        value: its true numbers, float32; None to read the bfloat16 variable where they are asked for.
    """

    dtype = tf.float32

    def __init__(self, variable: Variable, key: str, value: Tensor | None = None) -> None:
        self._variable, self._given = variable, value
        self._unique_id = key
        self.shape = variable.shape if value is None else value.shape

    @property
    def _value(self) -> Tensor:
        return tf.cast(self._variable, tf.float32) if self._given is None else self._given

    def __getattr__(self, name: str) -> Any:
        if name in HIDDEN or name.startswith("scatter_"):
            raise AttributeError(name)
        return getattr(self._variable, name)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Tensor:
        return self._value if dtype in (None, tf.float32) else tf.cast(self._value, dtype, name)

    def value(self) -> Tensor:
        """Return the value as it is now."""
        return self._value

    read_value = value

    def numpy(self) -> Any:
        """Return the value as a numpy array; eager only."""
        return self._value.numpy()

    def assign(self, value: Any, *_args: object, **_options: object) -> Float32Value:
        """Set the value."""
        wide: Tensor = tf.cast(value, tf.float32)
        self._given = wide if wide.shape == self.shape else tf.broadcast_to(wide, self.shape)
        return self

    def assign_add(self, delta: Any, *_args: object, **_options: object) -> Float32Value:
        """Add to the value."""
        return self.assign(self._value + tf.cast(delta, tf.float32))

    def assign_sub(self, delta: Any, *_args: object, **_options: object) -> Float32Value:
        """Subtract from the value."""
        return self.assign(self._value - tf.cast(delta, tf.float32))

    def scatter_add(self, delta: Gradient, *_args: object, **_options: object) -> Float32Value:
        """Add rows to the value."""
        return self.assign_add(tf.convert_to_tensor(delta))

    def scatter_sub(self, delta: Gradient, *_args: object, **_options: object) -> Float32Value:
        """Subtract rows from the value."""
        return self.assign_sub(tf.convert_to_tensor(delta))


def _operator(name: str) -> Any:
    def apply(self: Float32Value, *args: Any) -> Any:
        return getattr(self.value(), name)(*args)

    return apply


for _name in OPERATORS:
    setattr(Float32Value, _name, _operator(_name))
