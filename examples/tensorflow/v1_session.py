"""Graph-mode training in a ``tf.compat.v1`` session with the graph rewrite and dynamic loss scaling."""

from __future__ import annotations

import itertools

import tensorflow as tf

import unifiedamp as ua
from examples.common import PolicyName, Smoke, images, run, summary
from examples.tensorflow.nets import rewritable
from unifiedamp_tensorflow.training.session_rewrite import SessionRewrite

v1 = tf.compat.v1


def main(smoke: Smoke = False, policy: PolicyName = None, steps: int = 1000, batch_size: int = 256) -> None:
    """Build a graph and train it in a session with the graph rewrite."""
    width, steps, batch_size = (8, 40, 32) if smoke else (32, steps, batch_size)
    data = images("tensorflow", smoke, channels=1)
    scale = ua.DynamicLossScale(growth_interval=20 if smoke else 2000)

    with tf.Graph().as_default(), SessionRewrite(policy or rewritable(), loss_scale=scale) as rewrite:
        v1.set_random_seed(0)
        x = v1.placeholder(tf.float32, (None, *data.shape))
        y = v1.placeholder(tf.int32, (None,))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, cnn(x, width, data.classes)))
        optimizer = rewrite.prepare(v1.train.MomentumOptimizer(0.02, 0.9))
        train = optimizer.minimize(loss)

        epochs = (data.batches((0, 1, 2, 3), batch_size, 0, epoch) for epoch in itertools.count())
        losses = []
        with v1.Session(config=rewrite.session_config()) as session:
            session.run(v1.global_variables_initializer())
            for pixels, labels in itertools.islice(itertools.chain.from_iterable(epochs), steps):
                losses.append(session.run([loss, train], {x: pixels, y: labels})[0])
            print(summary(losses, rewrite.read_state(session)))


def cnn(x: tf.Tensor, width: int, classes: int) -> tf.Tensor:
    """Return the logits of two convolutions and a dense layer, in v1 style."""
    for name, channels in (("conv1", width), ("conv2", 2 * width)):
        kernel = v1.get_variable(f"{name}/kernel", (3, 3, x.shape[-1], channels))
        bias = v1.get_variable(f"{name}/bias", (channels,), initializer=v1.zeros_initializer())
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + bias), 2, 2, "SAME")
    x = tf.reshape(x, (-1, x.shape[1] * x.shape[2] * x.shape[3]))
    kernel = v1.get_variable("dense/kernel", (x.shape[1], classes))
    return tf.matmul(x, kernel) + v1.get_variable("dense/bias", (classes,), initializer=v1.zeros_initializer())


if __name__ == "__main__":
    run(main)
