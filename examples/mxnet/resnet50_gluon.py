"""ResNet-50 from Gluon's model zoo, hybridized, with dynamic loss scaling."""

from __future__ import annotations

from typing import Any

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run


def main(smoke: Smoke = False, policy: PolicyName = None, epochs: int = 5, batch_size: int = 256) -> None:
    """Train ResNet-50 v1; two narrow blocks in a smoke run."""
    batch_size, steps = (16, 30) if smoke else (batch_size, None)
    scale = ua.DynamicLossScale(growth_interval=15 if smoke else 2000)
    amp = ua.Amp("mxnet", policy or mixed_policy("mxnet"), loss_scale=scale)
    data = images("mxnet", smoke)

    from mxnet import gluon  # after the session, which makes MXNet importable with newer numpy
    from mxnet import random as mx_random

    from examples.mxnet.nets import resnet50

    mx_random.seed(0)
    with amp.scope():
        model = resnet50(data.classes, smoke)
        settings = {"learning_rate": 0.02, "momentum": 0.9}
        trainer = gluon.Trainer(model.collect_params(), "sgd", settings, update_on_kvstore=False)
    model, trainer = amp.prepare(model, trainer)
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    @amp.compile  # hybridizes the model with static_alloc and static_shape
    def train_step(x: Any, y: Any) -> Any:
        with amp.autocast():  # also records
            loss = cross_entropy(model(x), y).mean()
        with amp.scale_loss(loss, trainer) as scaled_loss:
            scaled_loss.backward()
        amp.step(trainer)
        return loss

    log = Log(amp, every=10 if smoke else 100)
    for x, y in batches(amp, data, batch_size, epochs, steps):
        log.add(train_step(x, y))
    log.end()


if __name__ == "__main__":
    run(main)
