"""What tuning looks for in a prepared model: biases before batch norms, and channels-first layers."""

from __future__ import annotations

from itertools import pairwise

import tensorflow as tf

from .._types import Model
from ..internals import descendants
from ..precision import layers


def biases_before_norm(model: Model) -> list[str]:
    """Return the layers with a bias that a batch norm follows, in the order of the model's layers."""
    leaves = [(path, layer) for path, layer in layers.walk(model) if not list(descendants(layer))]
    return [
        path
        for (path, layer), (_, norm) in pairwise(leaves)
        if isinstance(norm, tf.keras.layers.BatchNormalization) and getattr(layer, "use_bias", False)
        and getattr(layer, "activation", None) in (None, tf.keras.activations.linear)
    ]  # fmt: skip


def channels_first(model: Model) -> list[str]:
    """Return the layers that take their images with channels first."""
    return [path for path, layer in layers.walk(model) if getattr(layer, "data_format", None) == "channels_first"]
