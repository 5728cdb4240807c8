"""TensorFlow: a Keras policy, ``tf.GradientTape``, and ``LossScaleOptimizer`` for loss scaling (Keras 3)."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from record import driver

keras = tf.keras
GPUS = tf.config.list_physical_devices("GPU")
for _gpu in GPUS:
    tf.config.experimental.set_memory_growth(_gpu, True)

around = nullcontext
tensor = tf.constant


@functools.cache
def gpu() -> dict[str, Any] | None:
    if not GPUS:
        return None
    facts, built = tf.config.experimental.get_device_details(GPUS[0]), tf.sysconfig.get_build_info()
    return {
        "name": facts.get("device_name", "?"),
        "compute_capability": ".".join(map(str, facts.get("compute_capability", "?"))),
        "driver": driver(),
        "built_for_cuda": built.get("cuda_version", "?"),
        "built_for_cudnn": built.get("cudnn_version", "?"),
    }


def low() -> str:
    return "mixed_float16" if GPUS else "mixed_bfloat16"


@contextmanager
def scope(policy: str = "") -> Iterator[None]:
    """Create layers under the policy, which they keep."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy or low())
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def begin() -> None:
    """Do nothing: there are no caches between rows."""


def clear() -> None:
    gc.collect()


def finish() -> None:
    """Synchronize; CPU steps are synchronous."""
    if GPUS:
        tf.test.experimental.sync_devices()


def number(loss: Any) -> float:
    return float(loss)


def memory(run: Callable[[], Any]) -> dict[str, int]:
    """Return the peak only: TensorFlow frees no memory and reports only what it allocated."""
    return {"peak": tf.config.experimental.get_memory_info("GPU:0")["peak"]} if GPUS else {}


def train_step(
    model: Any, optimizer: Any, loss_fn: Any, scale: float | None, compiled: bool | str, policy: str = ""
) -> Callable[..., Any]:
    """``compiled=True`` uses ``tf.function``, "xla" adds XLA; layers keep the policy they were created under."""
    weights = model.trainable_variables
    optimizer.build(weights)

    def plain(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.cast(model(x, training=True), tf.float32), y)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    scaler = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale) if scale else None
    if scaler is not None:
        scaler.build(weights)

    def with_scale(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.cast(model(x, training=True), tf.float32), y)
            scaled_loss = scaler.scale_loss(loss)
        scaler.apply(tape.gradient(scaled_loss, weights), weights)
        return loss

    step = with_scale if scale else plain
    return tf.function(step, jit_compile=compiled == "xla" or None) if compiled else step
