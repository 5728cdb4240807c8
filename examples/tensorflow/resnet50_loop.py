"""ResNet-50 in a custom loop under a Keras policy, compiled by ``tf.function``, with or without XLA."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf
import typer

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run
from examples.tensorflow.nets import resnet50, set_seed

keras = tf.keras


def main(
    smoke: Smoke = False,
    policy: PolicyName = None,
    xla: Annotated[bool, typer.Option(help="Compile the step with XLA.")] = False,
    scale: Annotated[float | None, typer.Option(help="A static loss scale, such as 128 [default: dynamic]")] = None,
    epochs: int = 5,
    batch_size: int = 256,
) -> None:
    """Train ResNet-50 with the same loop as for PyTorch and MXNet."""
    data = images("tensorflow", smoke)
    if smoke:
        data, batch_size, epochs = data.first(64), 16, 4
    amp = ua.Amp(
        "tensorflow",
        policy or mixed_policy("tensorflow"),
        loss_scale=scale or "dynamic",
        backend_options={"tensorflow": {"xla": xla}},
    )
    set_seed(0)
    with amp.scope():
        model = resnet50(data.shape, data.classes, smoke)
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    model, optimizer = amp.prepare(model, optimizer)

    @amp.compile
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with amp.autocast():
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    log = Log(amp, every=4 if smoke else 100)
    for x, y in batches(amp, data, batch_size, epochs):
        log.add(train_step(x, y))
    log.end()


if __name__ == "__main__":
    run(main)
