"""ResNet-50 with ``model.compile`` and ``fit`` under a Keras policy, with a dynamic or static loss scale."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf
import typer

import unifiedamp as ua
from examples.common import PolicyName, Smoke, images, mixed_policy, run, summary
from examples.tensorflow.nets import resnet50, set_seed

keras = tf.keras


def main(
    smoke: Smoke = False,
    policy: PolicyName = None,
    scale: Annotated[float | None, typer.Option(help="A static loss scale, such as 128 [default: dynamic]")] = None,
    epochs: int = 5,
    batch_size: int = 256,
) -> None:
    """Train ResNet-50 with Keras's ``fit`` and a prepared optimizer."""
    data = images("tensorflow", smoke)
    if smoke:
        data, epochs, batch_size = data.first(64), 3, 16
    amp = ua.Amp(
        "tensorflow",
        policy or mixed_policy("tensorflow"),
        loss_scale=scale or ua.DynamicLossScale(growth_interval=4 if smoke else 2000),
    )
    set_seed(0)
    with amp.scope():  # sets the Keras policy: low-precision compute, float32 variables
        model = resnet50(data.shape, data.classes, smoke)
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    model, optimizer = amp.prepare(model, optimizer)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    history = model.fit(data.train_images, data.train_labels, batch_size, epochs, verbose=2)
    print(summary(history.history["loss"], amp))


if __name__ == "__main__":
    run(main)
