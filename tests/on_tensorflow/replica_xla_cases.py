"""Cases of ``replica_cases.py``: what XLA compiles of a step on two replicas, against the same step without it."""

from __future__ import annotations

import warnings
from collections import Counter, namedtuple

import numpy as np
import tensorflow as tf
from replica_sessions import MODES, SCALE, STRATEGY, keras

import unifiedamp as ua
from unifiedamp_tensorflow import internals
from unifiedamp_tensorflow.internals import native

Pair = namedtuple("Pair", "loss extra")
ROWS = 6


def dense(seed=0):
    return keras.initializers.GlorotUniform(seed)


def convnet():
    """Convolution, batch norm, a synchronized batch norm, dense."""
    sync = getattr(keras.layers, "SyncBatchNormalization", None)
    synchronized = sync() if sync else keras.layers.BatchNormalization(synchronized=True)
    layers = keras.layers
    return keras.Sequential([
        keras.Input((6, 6, 1)), layers.Conv2D(4, 3, kernel_initializer=dense()), layers.BatchNormalization(),
        layers.ReLU(), layers.Flatten(), layers.Dense(5, kernel_initializer=dense(1)), synchronized,
        layers.Dense(3, kernel_initializer=dense(2)),
    ])  # fmt: skip


def recurrent():
    """An embedding, an LSTM (a loop), dense."""
    layers = keras.layers
    return keras.Sequential([
        keras.Input((4,), dtype="int32"), layers.Embedding(7, 3, embeddings_initializer=dense()),
        layers.LSTM(3, kernel_initializer=dense(1), recurrent_initializer=dense(2)),
        layers.Dense(3, kernel_initializer=dense(3)),
    ])  # fmt: skip


def prepared(make, policy="float32", rate=0.1, **options):
    options.setdefault("loss_scale", SCALE)
    amp = ua.Amp("tensorflow", policy, **options)
    with STRATEGY.scope(), amp.scope():
        model, optimizer = make(), keras.optimizers.SGD(rate, momentum=0.9)
    return amp, *amp.prepare(model, optimizer)


def global_batches(shape, count=3, kind="float", rows=ROWS, last=None):
    """Return batches of both replicas; the last one may be shorter."""
    rng, batches = np.random.default_rng(0), []
    for index in range(count):
        size = last if last and index == count - 1 else rows
        x = rng.normal(size=(2, size, *shape)).astype("f") if kind == "float" else rng.integers(0, 7, (2, size, *shape))
        batches.append((per_replica(x), per_replica(rng.integers(0, 3, (2, size)))))
    return batches


def per_replica(values):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda replica: tf.constant(values[replica.replica_id_in_sync_group])
    )


def cross_entropy(y, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.cast(logits, tf.float32))) / 2


def everything(model):
    return [
        [np.asarray(copy).ravel().tolist() for copy in STRATEGY.experimental_local_results(native(weight))]
        for weight in model.weights
    ]


def trained(form, make, batches, policy="float32", clip=None, **options):
    """Train by a loop; return losses and all copies of all weights."""
    amp, model, optimizer = prepared(make, policy, **options)

    def replica_step(x, y):
        loss = amp.backward(lambda: cross_entropy(y, model(x)), optimizer)
        if clip:
            amp.clip_grad_norm(optimizer, clip)
        amp.step(optimizer)
        return loss

    @amp.compile(mode=MODES[form])
    def step(x, y):
        return STRATEGY.reduce("SUM", STRATEGY.run(replica_step, (x, y)), axis=None)

    losses = [float(step(*batch)) for batch in batches]
    return [losses, everything(model), amp.applied_steps, amp.loss_scale]


def case_networks(form):
    if form not in MODES:
        return None
    images, words = global_batches((6, 6, 1), last=4), global_batches((4,), kind="words")
    return {
        "convnet": trained(form, convnet, images, clip=1.0),
        "float16": trained(form, convnet, images, policy="mixed_float16"),
        "recurrent": trained(form, recurrent, words),
    }


if __name__=="__main__":
    import sys,json
    for form in sys.argv[1].split(','):
        for k,v in case_networks(form).items(): print(form,k,v[0],v[2:], [np.abs(np.array(w[0])-np.array(w[1])).max() for w in v[1]], [w[0][0] for w in v[1]])
