"""One step on two replicas, for the conformance kit: a process of its own, whose CPU counts as two devices."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import tensorflow as tf

from unifiedamp.backend import LossScale, Policy, SessionSpec

Answer = list[tuple[list[float], int]]
"""For each replica, its parameters and the session's count of skipped steps."""


def run_on_replicas(
    gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None = None
) -> Answer:
    """Return each replica's parameters and skipped steps after a step with these gradients; see ``Harness.device_run``.

    The step runs eagerly and as a compiled function, each with a model of its own.

    Args:
        gradients: the true gradients on each replica; they are summed.
        loss_scale: the session's.
        max_norm: clip the gradients to this norm; None leaves them.

    Raises:
        AssertionError: the two forms differ.
    """
    eager, compiled = _process().submit(_both_forms, list(gradients), loss_scale, max_norm).result(timeout=300)
    assert eager == compiled, f"eager and compiled differ: {eager} and {compiled}"
    return eager


@functools.cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _both_forms(gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None) -> list[Answer]:
    strategy = two_devices()
    return [_step(strategy, gradients, loss_scale, max_norm, compiled) for compiled in (False, True)]


@functools.cache
def two_devices() -> Any:
    """Return a strategy over two devices made of the CPU; legal until TensorFlow has looked at its devices."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _step(
    strategy: Any, gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None, compiled: bool
) -> Answer:
    from ..backend import TensorFlowBackend
    from ..precision.layers import native

    backend = TensorFlowBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
    with strategy.scope():
        dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = tf.keras.Sequential([tf.keras.Input((len(gradients[0]),)), dense])
        optimizer = tf.keras.optimizers.SGD(0.1)
    _, (optimizer,) = backend.prepare([model], [optimizer])

    def replica_step(x: Any) -> None:
        backend.backward(lambda: tf.reduce_sum(model(x)), [optimizer])
        if max_norm is not None:
            backend.unscale(optimizer)
            backend.clip_grad_norm(optimizer, max_norm)
        backend.step(optimizer, update=True)

    def step(x: Any) -> None:
        strategy.run(replica_step, (x,))

    run = tf.function(step, autograph=False) if compiled else step
    rows = [tf.constant([gradient], tf.float32) for gradient in gradients]
    run(strategy.experimental_distribute_values_from_function(lambda replica: rows[replica.replica_id_in_sync_group]))
    weights = strategy.experimental_local_results(native(model.weights[0]))
    return [(weight.numpy().ravel().tolist(), backend.read_state().skipped_steps) for weight in weights]
