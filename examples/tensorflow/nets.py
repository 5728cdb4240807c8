"""The networks of the TensorFlow examples: Keras's ResNet-50, and a small CNN."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

keras = tf.keras


def resnet50(shape: tuple[int, ...], classes: int, smoke: bool = False) -> Any:
    """Return ``keras.applications.ResNet50`` with new weights and a custom head; only the first block in a smoke run.

    The head computes in float32 under every policy: softmax and loss of float16 logits are too coarse.
    """
    body = keras.applications.ResNet50(weights=None, include_top=False, input_shape=shape)
    features = body.get_layer("conv2_block1_out").output if smoke else body.output
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(body.input, keras.layers.Dense(classes, dtype="float32", name="logits")(features))


def cnn(shape: tuple[int, ...], classes: int, width: int) -> Any:
    """Return two convolutions and two dense layers in float32; the graph rewrite adds the casts."""
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
    """Return the policy supported by TensorFlow's graph rewrite: float16 on GPUs, bfloat16 on CPUs."""
    return "mixed_float16" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"


def set_seed(number: int) -> None:
    """Make Keras's initial weights reproducible.

    Keras 2 and 3 seed layers from Python's generator. ``keras.utils.set_random_seed`` makes Keras 2 call ``randint``
    with a float, which Python deprecates.
    """
    random.seed(number)
    tf.random.set_seed(number)
