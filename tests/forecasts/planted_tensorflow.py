"""The planted model of Keras."""

import tensorflow as tf
from planted import CLASSES, FAINT, RATE, WIDTH, Built


@tf.custom_gradient
def fade(x):
    return tf.identity(x), lambda grad: grad * FAINT


class Planted(tf.keras.Model):
    def __init__(self, parts, faint):
        super().__init__(autocast=False)  # a spike that float16 cannot hold must reach layers in float32
        self.faint = faint
        self.parts = [
            tf.keras.layers.Dense(CLASSES, kernel_initializer="zeros", name=f"l{part}") for part in range(parts)
        ]
        for layer in self.parts:
            layer.build((None, WIDTH))
        self.built = True

    def call(self, x):
        outs = [tf.cast(layer(x[part]), tf.float32) for part, layer in enumerate(self.parts)]
        return tf.add_n([fade(out) if part in self.faint else out for part, out in enumerate(outs)])


class GroupedSGD(tf.keras.optimizers.SGD):
    """SGD at a higher rate for some variables."""

    raised = frozenset()

    def update_step(self, gradient, variable, *rate):
        factor = 1 / FAINT if id(variable) in self.raised else 1.0
        super().update_step(gradient * factor, variable, *rate)


def build(parts, faint):
    model, optimizer = Planted(parts, faint), GroupedSGD(RATE)
    faint_ones = [each for part in faint for each in model.parts[part].trainable_variables]
    optimizer.raised = frozenset(id(getattr(each, "_value", each)) for each in faint_ones)
    entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Built(model, optimizer, lambda out, y: entropy(y, out[: len(y)]))
