"""TensorFlow: float32 with and without TF32, a Keras policy, each by XLA too."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from native import tensorflow_amp as native
from recipes import Parts, Recipe
from turns import Loop

from . import Setup, ours


def setups(recipe: Recipe) -> dict[str, Setup]:
    """Return what is compared on this device."""
    return {**(_on_gpu() if native.GPUS else _on_cpu()), **ours(native.low())}


def _on_cpu() -> dict[str, Setup]:
    low = native.low()
    return {
        "fp32 eager": Setup("float32", "float32", stays=True),
        "fp32 + tf.function": Setup("tf.function", "float32", True, stays=True),
        "fp32 + XLA": Setup("tf.function(jit_compile=True)", "float32", "xla"),
        "native AMP": Setup("Keras policy, tf.function", low, True, stays=True),
        "AMP + XLA": Setup("Keras policy, XLA", low, "xla"),
    }


def _on_gpu() -> dict[str, Setup]:
    low = native.low()
    # Those that stay hold their memory; XLA's hold little.
    return {
        "strict fp32": Setup("TF32 off, tf.function", "float32", True, tf32=False, stays=True),
        "TF32 + XLA": Setup("tf.function(jit_compile=True)", "float32", "xla", tf32=True, stays=True),
        "best native": Setup("Keras policy, LossScaleOptimizer, XLA", low, "xla", stays=True),
        "TF32": Setup("tf.function", "float32", True, tf32=True),
        "native AMP": Setup("Keras policy, LossScaleOptimizer, tf.function", low, True),
    }


def build(parts: Parts, setup: Setup) -> Loop:
    """Return a hand-written loop."""
    if setup.tf32 is not None:
        tf.config.experimental.enable_tensor_float_32_execution(setup.tf32)
    with native.scope(setup.policy):
        model = parts.model()
        optimizer = parts.optimizer(model)
    x, y = native.tensor(parts.images), native.tensor(parts.labels)
    scaled = setup.policy == "mixed_float16"
    step: Any = native.train_step(model, optimizer, parts.loss_fn, scaled, setup.compiled)
    return Loop(lambda: step(x, y), native.finish, native.around)
