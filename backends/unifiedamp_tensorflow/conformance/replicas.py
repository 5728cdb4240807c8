"""Steps on several replicas, for the conformance kit: in a separate process, whose CPU counts as several devices."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import LossScale, Policy, SessionSpec
from unifiedamp.conformance.ranks import RankProcesses

from ..distributed.launched import strategy_here

STARTING = 120.0
"""Seconds that the start of workers may take, each of which imports TensorFlow."""
Answer = list[tuple[list[float], int]]
"""For each replica, its parameters and the session's count of skipped steps."""


def run_on_replicas(
    gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None = None
) -> Answer:
    """Return each replica's parameters and skipped steps after a step with these gradients; see ``Harness.device_run``.

    The step runs eagerly and as a compiled function, each with its own model.

    Args:
        gradients: the true gradients on each replica; they are summed.
        loss_scale: the session's.
        max_norm: clip the gradients to this norm; None leaves them.

    Raises:
        AssertionError: the two forms differ.
    """
    ((eager, compiled),) = process(len(gradients)).run(_both_forms, list(gradients), loss_scale, max_norm)
    assert eager == compiled, f"eager and compiled differ: {eager} and {compiled}"
    return eager


def process(count: int) -> RankProcesses:
    """Return the process of this many replicas: TensorFlow's collectives of one process are all of one size."""
    return _process(max(count, 2))


@functools.cache
def _process(_count: int) -> RankProcesses:
    return RankProcesses(1)


@functools.cache
def workers(count: int) -> RankProcesses:
    """Return processes that are the workers of one cluster, each with one replica."""
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(socket.socket()) for _ in range(count)]
        for place in places:
            place.bind(("localhost", 0))
        addresses = [f"localhost:{place.getsockname()[1]}" for place in places]
    return RankProcesses(count, setup=functools.partial(join_cluster, addresses), starting=STARTING)


def join_cluster(addresses: Sequence[str], index: int, _count: int, _folder: str) -> None:
    """Make this process the worker of that index."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
    of_cluster()


def of_cluster() -> Any:
    """Return the strategy of the cluster that this process is a worker of."""
    return strategy_here()


def _both_forms(
    _index: int, _count: int, gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None
) -> Iterator[Answer]:
    for compiled in (False, True):
        yield _step(replicas_on_cpu(len(gradients)), gradients, loss_scale, max_norm, compiled)


MOST = 4
"""How many devices the CPU counts as."""


@functools.cache
def replicas_on_cpu(count: int) -> Any:
    """Return a strategy over devices made of the CPU; legal until TensorFlow has looked at its devices."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    if not tf.config.get_logical_device_configuration(cpu):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * MOST)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(count)])


def _step(
    strategy: Any, gradients: Sequence[Sequence[float]], loss_scale: LossScale, max_norm: float | None, compiled: bool
) -> Answer:
    from ..backend import TensorFlowBackend
    from ..internals import native

    backend = TensorFlowBackend(SessionSpec(Policy(), loss_scale, device="cpu"))
    with strategy.scope():
        dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = tf.keras.Sequential([tf.keras.Input((len(gradients[0]),)), dense])
        optimizer = tf.keras.optimizers.SGD(0.1)
    _, (optimizer,) = backend.training.prepare([model], [optimizer])

    def replica_step(x: Any) -> None:
        backend.training.backward(lambda: tf.reduce_sum(model(x)), [optimizer])
        if max_norm is not None:
            backend.training.unscale(optimizer)
            backend.training.clip_grad_norm(optimizer, max_norm)
        backend.training.step(optimizer, update_scale=True)

    def step(x: Any) -> None:
        strategy.run(replica_step, (x,))

    run = tf.function(step, autograph=False) if compiled else step
    rows = [tf.constant([gradient], tf.float32) for gradient in gradients]
    run(strategy.experimental_distribute_values_from_function(lambda replica: rows[replica.replica_id_in_sync_group]))
    weights = strategy.experimental_local_results(native(model.weights[0]))
    return [(weight.numpy().ravel().tolist(), backend.training.read_state().skipped_steps) for weight in weights]
