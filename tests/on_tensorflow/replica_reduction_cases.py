"""Gradients summed over two replicas in another dtype; see ``replica_cases``."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from replica_sessions import STRATEGY, batch, copies, keras, session, spread

import unifiedamp as ua
from unifiedamp_tensorflow.conformance.harness import Probe
from unifiedamp_tensorflow.internals import native

DTYPES = (None, "float32", "bfloat16", "float16")
PAIRS = ((1 + 2**-9, 3 * 2**-10), (3.1, 7.7), (40000.0, 40000.0), (70000.0, 1.0))
"""The last two are finite on each replica, and overflow float16: one as a sum, one when it is cast."""


def summed(form, dtype):
    """Train from 1 by each pair of gradients alone; return the weight, whether it was applied, and explain's row."""
    amp, (model,), (optimizer,) = session(loss_scale=1.0, reduce_dtype=dtype)

    def step(x):
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    run, rows = spread(step, amp, form), []
    for pair in PAIRS:
        model.ws[0].assign([1.0])
        before = amp.applied_steps
        run(batch(pair))
        rows.append([copies(model.ws[0]), amp.applied_steps - before])
    return rows, next(row.value for row in amp.explain() if row.setting == "gradients of ranks")


def case_reduced(form):
    return {str(dtype): summed(form, dtype) for dtype in DTYPES}


def case_reduced_small(form):
    """A sum that float16 holds under the loss scale, and not divided by it."""
    amp, (model,), (optimizer,) = session(loss_scale=2.0**14, reduce_dtype="float16")

    def step(x):
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    model.ws[0].assign([0.0])
    spread(step, amp, form)(batch((2.0**-27, 2.0**-27)))
    return [float(copy.numpy()[0]) for copy in STRATEGY.experimental_local_results(native(model.ws[0]))]


def case_reduced_rows(form):
    """Sparse gradients, gathered as they are: both replicas train row 2."""
    amp = ua.Amp("tensorflow", "float32", loss_scale=1.0, reduce_dtype="bfloat16")
    with STRATEGY.scope(), amp.scope():
        table = keras.layers.Embedding(3, 1, embeddings_initializer="zeros")
        model = keras.Sequential([keras.Input((2,), dtype="int32"), table])
        optimizer = keras.optimizers.SGD(1.0)
    model, optimizer = amp.prepare(model, optimizer)

    def step(rows):
        amp.backward(lambda: tf.reduce_sum(model(rows)) * (1 + 2**-9), optimizer)
        amp.step(optimizer)

    rows = STRATEGY.experimental_distribute_values_from_function(
        lambda replica: tf.constant([[replica.replica_id_in_sync_group, 2]])
    )
    spread(step, amp, form)(rows)
    return [float(value) for value in np.ravel(amp.master_weights(model).popitem()[1])]


def fitted(form, loss_scale, reduce_dtype):
    amp = ua.Amp("tensorflow", "float32", loss_scale=loss_scale, reduce_dtype=reduce_dtype)
    with STRATEGY.scope(), amp.scope():
        model, optimizer = Probe([1.0]), keras.optimizers.SGD(0.1)
    model, optimizer = amp.prepare(model, optimizer)
    model.compile(optimizer, lambda target, output: output, run_eagerly=form == "eager")
    x = np.float32(PAIRS[1])
    model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
    return copies(model.ws[0]), next(row.value for row in amp.explain() if row.setting == "gradients of ranks")


def case_reduced_in_fit(form):
    """Without a loss scale the optimizer would be Keras's own."""
    return [fitted(form, *settings) for settings in (("none", None), ("none", "bfloat16"), (1.0, "float16"))]
