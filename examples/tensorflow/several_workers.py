"""One loop in one process or on the workers of ``TF_CONFIG``, with ``MultiWorkerMirroredStrategy``."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run
from examples.tensorflow.nets import cnn, set_seed

keras = tf.keras


def main(smoke: Smoke = False, policy: PolicyName = None, epochs: int = 5, batch_size: int = 512) -> None:
    """Train a small CNN; each worker trains on its part of every batch of ``batch_size`` images."""
    rank, ranks = place()
    # First of all: workers are joined before TensorFlow runs an operation.
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if ranks > 1 else tf.distribute.get_strategy()
    batch_size, steps = (32, 60) if smoke else (batch_size, None)
    data = images("tensorflow", smoke, channels=1)
    amp = ua.Amp("tensorflow", policy or mixed_policy("tensorflow"), loss_scale="dynamic")
    set_seed(0)
    with strategy.scope(), amp.scope():
        model = cnn(data.shape, data.classes, 8 if smoke else 64)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        model, optimizer = amp.prepare(model, optimizer)

    def replica_step(x: Any, y: Any) -> Any:
        def loss() -> Any:
            found = tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.cast(model(x), tf.float32))
            return tf.reduce_mean(found) / ranks  # gradients are summed over the workers

        found = amp.backward(loss, optimizer)
        amp.clip_grad_norm(optimizer, 1.0)  # of the sum
        amp.step(optimizer)  # applied or skipped by all workers alike
        return found * ranks

    @amp.compile
    def train_step(x: Any, y: Any) -> Any:
        return strategy.run(replica_step, (x, y))

    log = Log(amp, every=20)
    for x, y in batches(amp, data, batch_size, epochs, steps):
        loss = train_step(x[rank::ranks], y[rank::ranks])
        if rank == 0:
            log.add(loss)
    if rank == 0:
        log.end()
        print(f"{ranks} worker{'s' if ranks > 1 else ''}: test accuracy {accuracy(amp, model, data):.3f}")


def place() -> tuple[int, int]:
    """Return this worker's number, and how many there are."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    return config.get("task", {}).get("index", 0), len(config.get("cluster", {}).get("worker", [0]))


def accuracy(amp: ua.Amp, model: Any, data: Any) -> float:
    """Return the share of right answers on the test images."""
    with amp.inference(model):
        logits = model(amp.to_native(data.test_images))
    return float((amp.to_numpy(logits).argmax(1) == data.test_labels).mean())


if __name__ == "__main__":
    run(main)
