"""Cases of ``replica_cases.py``: what XLA compiles of a step on two replicas, against the same step without it."""

from __future__ import annotations

import os
import unittest.mock
import warnings
from collections import Counter, namedtuple

import numpy as np
import tensorflow as tf
from replica_sessions import BY_XLA, MODES, SCALE, STRATEGY, in_forms, keras

import unifiedamp as ua
from unifiedamp_tensorflow import internals
from unifiedamp_tensorflow.distributed.replica_programs import ReplicaPrograms
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
    """An embedding, a loop, dense."""
    layers = keras.layers
    return keras.Sequential([
        keras.Input((4,), dtype="int32"), layers.Embedding(7, 3, embeddings_initializer=dense()),
        layers.SimpleRNN(3, kernel_initializer=dense(1), recurrent_initializer=dense(2)),
        layers.Dense(3, kernel_initializer=dense(3)),
    ])  # fmt: skip


def momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def prepared(make, policy="float32", optimizer=momentum, **options):
    options.setdefault("loss_scale", SCALE)
    amp = ua.Amp("tensorflow", policy, **options)
    with STRATEGY.scope(), amp.scope():
        model, optimizer = make(), optimizer()
    return amp, *amp.prepare(model, optimizer)


def global_batches(shape, count, kind="float", rows=ROWS, last=None):
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


def copies(variables):
    return [
        [np.asarray(copy).ravel().tolist() for copy in STRATEGY.experimental_local_results(native(variable))]
        for variable in variables
    ]


def everything(model):
    return copies(model.weights)


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


@in_forms(*BY_XLA)
def case_networks(form):
    images, words, rows = global_batches((6, 6, 1), 2), global_batches((4,), 2, kind="words"), global_batches((4,), 2)
    return {
        "convnet": trained(form, convnet, images, clip=1.0),
        "float16": trained(form, small, rows, policy="mixed_float16"),
        "recurrent": trained(form, recurrent, words),
    }


def graph_of(step, *args):
    """Return the operations of a compiled step's trace, and those of all functions that were run, optimized."""
    with internals.collect_graphs() as graphs:
        step(*args)
    return Counter(node.op for graph in graphs for node in graph.node)


@in_forms(*BY_XLA)
def case_layout(form):
    """What XLA runs of a step, and what TensorFlow runs beside it."""
    amp, model, optimizer = prepared(convnet)
    inside, outside, seal = Counter(), Counter(), ReplicaPrograms.seal

    def sealed(programs, result):
        result = seal(programs, result)
        for op in tf.compat.v1.get_default_graph().get_operations():
            (inside if internals.PROGRAM in op.node_def.attr else outside)[op.type] += 1
        return result

    def replica_step(x, y):
        amp.backward(lambda: cross_entropy(y, model(x)), optimizer)
        amp.unscale(optimizer)
        amp.step(optimizer)

    step = amp.compile(lambda x, y: STRATEGY.run(replica_step, (x, y)), mode=MODES[form])
    with unittest.mock.patch.object(ReplicaPrograms, "seal", sealed):
        ran = graph_of(step, *global_batches((6, 6, 1), 1)[0])
    return [inside, outside, ran]


@in_forms(*BY_XLA)
def case_odd(form):
    """Outputs of all kinds, what XLA cannot run, metrics, a constant from outside, two batches of other sizes."""
    amp, model, optimizer = prepared(small)
    with STRATEGY.scope():
        mean = keras.metrics.Mean()
    axis = tf.constant(-1)

    def replica_step(x, y):
        rows = tf.shape(x)[0]
        with amp.autocast():
            logits = model(tf.reshape(x, [rows, 4]))
            tf.debugging.assert_all_finite(logits, "logits")
            tf.print("rows", rows, output_stream=f"file://{os.devnull}")
            loss = cross_entropy(y, tf.concat([logits, logits], axis)[:, :3])
        positive = tf.cond(loss > 0.0, lambda: 1.0, lambda: 0.0)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        mean.update_state(loss)
        amp.step(optimizer)
        return {"pair": Pair(loss, [positive, rows]), "none": None, "name": "step", "logits": logits}

    step = amp.compile(lambda x, y: STRATEGY.run(replica_step, (x, y)), mode=MODES[form])
    rows = []
    for batch in global_batches((4,), 2, last=2):
        result = step(*batch)
        pair, local = result["pair"], STRATEGY.experimental_local_results
        rows.append([
            [float(one) for one in local(pair.loss)], [float(one) for one in local(pair.extra[0])],
            [int(one) for one in local(pair.extra[1])], str(local(result["none"])[0]), str(local(result["name"])[0]),
            [np.asarray(one).tolist() for one in local(result["logits"])],
        ])  # fmt: skip
    return [rows, float(mean.result()), everything(model)]


def small():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh", kernel_initializer=dense())])


def looping():
    layers = [
        keras.Input((4, 1)),
        keras.layers.SimpleRNN(3, kernel_initializer=dense(), recurrent_initializer=dense(1)),
    ]
    return keras.Sequential(layers)


def by_turns(form, make, shape):
    """Train two models; both forward passes, then a backward pass and a step for each."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
    with STRATEGY.scope(), amp.scope():
        models, natives = [make(), make()], [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)]
    *models, one, two = amp.prepare(*models, *natives)

    def replica_step(x, y):
        with amp.autocast():
            first, second = (cross_entropy(y, model(x)) for model in models)
        for loss, optimizer in ((first, one), (second, two)):
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            amp.step(optimizer)
        return first + second

    step = amp.compile(lambda x, y: STRATEGY.run(replica_step, (x, y)), mode=MODES[form])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = [
            [float(one) for one in STRATEGY.experimental_local_results(step(*batch))]
            for batch in global_batches(shape, 2)
        ]
    told = [str(one.message) for one in caught if issubclass(one.category, ua.CompileWarning)]
    return [losses, everything(models[0]) + everything(models[1]), amp.applied_steps, amp.loss_scale, told]


@in_forms(*BY_XLA)
def case_two_losses(form):
    """Of dense layers, which XLA compiles, and of loops, whose gradients need more than one program may pass on."""
    return [by_turns(form, small, (4,)), by_turns(form, looping, (4, 1))]


@in_forms(*BY_XLA)
def case_not_by_xla(form):
    """Steps whose replicas XLA cannot compile: the same results, and a warning."""
    amp, model, optimizer = prepared(
        lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, kernel_initializer=dense())])
    )

    @tf.function
    def in_a_loop(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, model(x)), (0, x))[1]

    def replica_step(x, y, call):
        amp.backward(lambda: cross_entropy(y, call(x)), optimizer)
        amp.step(optimizer)

    def often(x, y):
        for _ in tf.range(2):
            STRATEGY.run(replica_step, (x, y, model))

    told = []
    for body in (often, lambda x, y: STRATEGY.run(replica_step, (x, y, in_a_loop))):
        step = amp.compile(body, mode=MODES[form])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(*global_batches((4,), 1)[0])
        told.append([str(one.message) for one in caught if issubclass(one.category, ua.CompileWarning)])
    return [told, everything(model), amp.applied_steps]


@in_forms(*BY_XLA)
def case_dropout(form):
    """What two replicas keep in each of two steps."""
    amp, model, optimizer = prepared(
        lambda: keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5), keras.layers.Dense(1, None, False)])
    )

    def replica_step(x):
        with amp.autocast():
            dropped = model.layers[0](x, training=True)
            loss = tf.reduce_mean(model.layers[1](dropped))
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        amp.step(optimizer)
        return dropped

    step = amp.compile(lambda x: STRATEGY.run(replica_step, (x,)), mode=MODES[form])
    ones = per_replica(np.ones((2, 1, 64), "f"))
    return [
        np.asarray(one).ravel().tolist() for _ in range(2) for one in STRATEGY.experimental_local_results(step(ones))
    ]
