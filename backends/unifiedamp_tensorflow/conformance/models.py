"""Keras models, layers and schedules for the shared suite."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.conformance.harness import Array

from ..internals import native

keras: Any = tf.keras


class Probe(keras.Model):
    """``sum(w_i * x_i)`` in float32."""

    def __init__(self, values: Sequence[float], wide: bool = False) -> None:
        super().__init__(name="probe")
        self.ws = [
            self.add_weight(
                name=f"w{i}", shape=(1,), dtype="float64" if wide and i % 2 else self.variable_dtype,
                initializer=keras.initializers.Constant(value),
            )
            for i, value in enumerate(values)
        ]  # fmt: skip
        self.built = True

    def call(self, x: Any) -> Any:
        """Return the scalar."""
        values = x if x.shape[0] is None else tf.unstack(x)  # many times faster than an index each
        terms = [tf.cast(w, tf.float32) * tf.cast(values[i], tf.float32) for i, w in enumerate(self.ws)]
        return tf.add_n([tf.reduce_sum(term) for term in terms])


class ComplexProbe(keras.Model):
    """``sum(real(w_i) * x_2i + imag(w_i) * x_2i+1)``."""

    def __init__(self, values: Sequence[complex]) -> None:
        super().__init__(name="complex_probe")
        self.ws = [
            self.add_weight(name=f"w{i}", shape=(1,), dtype="complex64", initializer="zeros")
            for i in range(len(values))
        ]
        for weight, value in zip(self.ws, values, strict=True):
            native(weight).assign([value])
        self.built = True

    def call(self, x: Any) -> Any:
        """Return the scalar."""
        weights = tf.concat([tf.convert_to_tensor(native(weight)) for weight in self.ws], 0)
        return tf.reduce_sum(tf.math.real(weights) * x[0::2] + tf.math.imag(weights) * x[1::2])


class Picked(keras.Model):
    """The sum of the rows picked, of a table whose gradient is ``IndexedSlices``."""

    def __init__(self, table: Array) -> None:
        super().__init__(name="picked")
        self.table = self.add_weight(
            name="table", shape=table.shape, dtype=self.variable_dtype, initializer=keras.initializers.Constant(table)
        )
        self.built = True

    def call(self, rows: Any) -> Any:
        """Return the scalar."""
        return tf.reduce_sum(tf.cast(tf.gather(native(self.table), rows), tf.float32))


class Structured(keras.Model):
    """A dense layer's output, and a list of twice that and the place of each row's largest."""

    def __init__(self, weight: Array, bias: Array) -> None:
        super().__init__(name="structured")
        self.dense = keras.layers.Dense(bias.shape[0], name="dense")
        self.dense.build((None, weight.shape[0]))
        self.dense.set_weights([weight, bias])
        self.built = True

    def call(self, x: Any) -> Any:
        """Return the structure."""
        output = self.dense(x)
        return output, [2 * output, tf.argmax(output, -1)]


class Doubled(NamedTuple):
    """Twice an output, and the place of each row's largest."""

    double: Any
    place: Any


class Mapped(Structured):
    """The same in a dict, with a named tuple."""

    def call(self, x: Any) -> Any:
        """Return the dict."""
        output = self.dense(x)
        return OrderedDict(output=output, pair=Doubled(2 * output, tf.argmax(output, -1)))


class Attends(keras.Model):
    """Self-attention without biases, in Keras's layer."""

    def __init__(self, projections: Any, heads: int) -> None:
        super().__init__()
        width = len(projections[0])
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads, use_bias=False, name="attention")
        empty = keras.Input((1, width))
        self.attention(empty, empty)
        shapes = [(width, heads, -1)] * 3 + [(heads, -1, width)]
        self.attention.set_weights([w.reshape(shape) for w, shape in zip(projections, shapes, strict=True)])
        self.built = True

    def call(self, x: Any) -> Any:
        """Return the outputs, of the shape of the inputs."""
        return self.attention(x, x)


class Ratio(keras.layers.Layer):
    """Divides each row by the sum of its absolute values."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(name="ratio")
        self.epsilon = epsilon

    def call(self, x: Any) -> Any:
        """Return rows of sum 1."""
        total = tf.reduce_sum(tf.abs(x), -1, keepdims=True)
        return x / (total + tf.cast(self.epsilon, x.dtype))


class Listed(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate for each step; the last stays."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = [float(rate) for rate in rates]

    def __call__(self, step: Any) -> Any:
        """Return the rate of the step with this number, from 0."""
        return tf.gather(tf.constant(self.rates), tf.minimum(tf.cast(step, tf.int64), len(self.rates) - 1))

    def get_config(self) -> dict[str, Any]:
        """Return what it was made with."""
        return {"rates": self.rates}
