"""Session training through the graph rewrite, as write-ups for TensorFlow 1.14 have it."""

import numpy as np
import tensorflow as tf


def train(steps):
    with tf.Graph().as_default():
        rng = np.random.default_rng(0)
        x = tf.compat.v1.placeholder(tf.float32, [None, 8])
        y = tf.compat.v1.placeholder(tf.float32, [None, 1])
        w1 = tf.compat.v1.get_variable("w1", initializer=rng.normal(0, 0.3, (8, 16)).astype("float32"))
        w2 = tf.compat.v1.get_variable("w2", initializer=rng.normal(0, 0.3, (16, 1)).astype("float32"))
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(tf.matmul(x, w1)), w2) - y))

        opt = tf.compat.v1.train.AdamOptimizer(0.02)
        opt = tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(opt)
        train_op = opt.minimize(loss)

        data = rng.normal(size=(32, 8)).astype("float32")
        feed = {x: data, y: data.sum(axis=1, keepdims=True)}
        losses = []
        with tf.compat.v1.Session() as sess:
            sess.run(tf.compat.v1.global_variables_initializer())
            for _ in range(steps):
                _, value = sess.run([train_op, loss], feed_dict=feed)
                losses.append(float(value))
    return losses
