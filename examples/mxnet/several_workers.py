"""One loop in one process or on the workers of a ``dist_sync`` kvstore, as MXNet's ``launch.py`` starts them."""

from __future__ import annotations

import os
from typing import Any

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run


def main(smoke: Smoke = False, policy: PolicyName = None, epochs: int = 5, batch_size: int = 512) -> None:
    """Train a small CNN; each worker trains on its part of every batch of ``batch_size`` images."""
    batch_size, steps = (32, 60) if smoke else (batch_size, None)
    # A scheduler or server serves the workers in here, where MXNet is imported, until they have ended.
    amp = ua.Amp("mxnet", policy or mixed_policy("mxnet"), loss_scale="dynamic")
    data = images("mxnet", smoke, channels=1)

    from mxnet import gluon, kvstore
    from mxnet import random as mx_random

    from examples.mxnet.nets import cnn

    store = kvstore.create("dist_sync" if "DMLC_ROLE" in os.environ else "device")
    rank, ranks = store.rank, store.num_workers
    mx_random.seed(0)
    with amp.scope():
        model = cnn(data.classes, 8 if smoke else 64)
        settings = {"learning_rate": 0.05, "momentum": 0.9}
        trainer = gluon.Trainer(model.collect_params(), "sgd", settings, kvstore=store, update_on_kvstore=False)
    model, trainer = amp.prepare(model, trainer)
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    @amp.compile  # hybridizes the model
    def train_step(x: Any, y: Any) -> Any:
        # Gradients are summed over the workers.
        loss = amp.backward(lambda: cross_entropy(model(x), y).mean() / ranks, trainer)
        amp.clip_grad_norm(trainer, 1.0)  # of the sum
        amp.step(trainer)  # applied or skipped by all workers alike
        return loss * ranks

    log = Log(amp, every=20)
    for x, y in batches(amp, data, batch_size, epochs, steps):
        loss = train_step(x[rank::ranks], y[rank::ranks])
        if rank == 0:
            log.add(loss)
    if rank == 0:
        log.end()
        print(f"{ranks} worker{'s' if ranks > 1 else ''}: test accuracy {accuracy(amp, model, data):.3f}")


def accuracy(amp: ua.Amp, model: Any, data: Any) -> float:
    """Return the share of right answers on channels-last images."""
    with amp.inference(model):
        logits = model(amp.to_native(data.test_images.transpose(0, 3, 1, 2).copy()))
    return float((amp.to_numpy(logits).argmax(1) == data.test_labels).mean())


if __name__ == "__main__":
    run(main)
