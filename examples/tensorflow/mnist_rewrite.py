"""An MNIST-style CNN in float32, with TensorFlow's automatic mixed precision graph rewrite."""

from __future__ import annotations

import tensorflow as tf

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, run
from examples.tensorflow.nets import cnn, rewritable, set_seed

keras = tf.keras


def main(smoke: Smoke = False, policy: PolicyName = None, epochs: int = 3, batch_size: int = 256) -> None:
    """Train, then report which nodes of the step's graph were rewritten."""
    width, batch_size, steps = (8, 32, 40) if smoke else (32, batch_size, None)
    data = images("tensorflow", smoke, channels=1)
    amp = ua.Amp(
        "tensorflow",
        policy or rewritable(),
        loss_scale="dynamic",  # the rewrite does not scale the loss
        backend_options={"tensorflow": {"mode": "graph_rewrite"}},
    )
    set_seed(0)
    with amp.scope():
        model = cnn(data.shape, data.classes, width)
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    model, optimizer = amp.prepare(model, optimizer)

    @amp.compile  # required: the rewrite works on graphs
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with amp.autocast():
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    log = Log(amp, every=10 if smoke else 100)
    for x, y in batches(amp, data, batch_size, epochs, steps):
        log.add(train_step(x, y))
    log.end()
    row = amp.explain().row("rewrite")
    print(f"rewrite, {row.effect}: {row.value}")


if __name__ == "__main__":
    run(main)
