"""The networks of these examples: Keras's own ResNet-50, and a small CNN."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

keras = tf.keras


def resnet50(shape: tuple[int, ...], classes: int, smoke: bool = False) -> Any:
    """Return ``keras.applications.ResNet50`` with new weights and a head of its own; for a smoke run its begin alone.

    Whatever the policy, the head computes in float32: softmax and loss of float16 logits would be too coarse.
    """
    body = keras.applications.ResNet50(weights=None, include_top=False, input_shape=shape)
    features = body.get_layer("conv2_block1_out").output if smoke else body.output
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(body.input, keras.layers.Dense(classes, dtype="float32", name="logits")(features))


def cnn(shape: tuple[int, ...], classes: int, width: int) -> Any:
    """Return two convolutions and two dense layers, all in float32: casting is the rewrite's business."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(width, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4 * width, activation="relu"),
            layers.Dense(classes),
        ]
    )


def rewritable() -> str:
    """Return the policy that TensorFlow has a graph rewrite for: float16 on GPUs, bfloat16 on CPUs."""
    return "mixed_float16" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"


def set_seed(number: int) -> None:
    """Have Keras draw the same first weights each time.

    Both Keras 2 and 3 seed their layers from Python's generator; ``keras.utils.set_random_seed`` would do it too, but
    leaves Keras 2 calling ``randint`` with a float from then on, which Python deprecates.
    """
    random.seed(number)
    tf.random.set_seed(number)
