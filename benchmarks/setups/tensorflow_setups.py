"""TensorFlow: float32 with and without TF32, and a Keras policy, each with and without XLA."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from native import tensorflow_amp as native
from recipes import Parts, Recipe
from timing import Loop

from . import Setup, ours


def setups(recipe: Recipe) -> dict[str, Setup]:
    """Return the configurations for this device: references, unifiedamp's, and others."""
    held, others = (_held_on_gpu(), _others_on_gpu()) if native.GPUS else (_held_on_cpu(), _others_on_cpu())
    return {**held, **ours(native.low()), **others}


def _held_on_cpu() -> dict[str, Setup]:
    return {
        "fp32 eager": Setup("float32", "float32", stays=True),
        "fp32 + tf.function": Setup("tf.function", "float32", True, stays=True),
        "native AMP": Setup("Keras policy, tf.function", native.low(), True, stays=True),
    }


def _others_on_cpu() -> dict[str, Setup]:
    return {
        "fp32 + XLA": Setup("tf.function(jit_compile=True)", "float32", "xla"),
        "AMP + XLA": Setup("Keras policy, XLA", native.low(), "xla"),
    }


def _held_on_gpu() -> dict[str, Setup]:
    # References keep their memory; those compiled by XLA need little.
    return {
        "strict fp32": Setup("TF32 off, tf.function", "float32", True, tf32=False, stays=True),
        "TF32 + XLA": Setup("tf.function(jit_compile=True)", "float32", "xla", tf32=True, stays=True),
        "best native": Setup("Keras policy, LossScaleOptimizer, XLA", native.low(), "xla", stays=True),
    }


def _others_on_gpu() -> dict[str, Setup]:
    return {
        "TF32": Setup("tf.function", "float32", True, tf32=True),
        "native AMP": Setup("Keras policy, LossScaleOptimizer, tf.function", native.low(), True),
    }


def build(parts: Parts, setup: Setup) -> Loop:
    """Return a hand-written loop."""
    if setup.tf32 is not None:
        tf.config.experimental.enable_tensor_float_32_execution(setup.tf32)
    with native.scope(setup.policy):
        model = parts.model()
        optimizer = parts.optimizer(model)
    x, y = native.tensor(parts.images), native.tensor(parts.labels)
    scale = parts.recipe.first_scale if setup.policy == "mixed_float16" else None
    step: Any = native.train_step(model, optimizer, parts.loss_fn, scale, setup.compiled)
    return Loop(lambda: step(x, y), native.finish, native.around)
