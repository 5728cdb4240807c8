"""What happens on two replicas: a process whose CPU counts as two devices, which runs cases as tests ask for them.

Each case returns plain JSON values; asserting is left to the tests.
"""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import replica_closing_cases
import replica_difference_cases
import replica_fit_cases
import replica_fit_difference_cases
import replica_reduction_cases
import replica_update_cases
import replica_xla_cases
import tensorflow as tf
from replica_process import answer_requests
from replica_sessions import (
    EAGER,
    GOOD,
    INF,
    NAN,
    SCALE,
    STRATEGY,
    batch,
    copies,
    in_forms,
    keras,
    session,
    spread,
)  # fmt: skip

import unifiedamp as ua
from unifiedamp.compat import keras2
from unifiedamp_tensorflow.conformance.harness import Probe
from unifiedamp_tensorflow.internals import native


def fed(form, pairs, clip=None, **options):
    """Feed one pair of gradients a step; return what is left after each."""
    amp, (model,), (optimizer,) = session(**options)

    def step(x):
        loss = amp.backward(lambda: model(x), optimizer)
        if clip is not None:
            clip(amp, optimizer)
        amp.step(optimizer)
        return loss

    run, rows = spread(step, amp, form), []
    for pair in pairs:
        scale = amp.loss_scale
        run(batch(pair))
        state = amp.backend.training.read_state()
        rows.append([scale, copies(model.ws[0]), state.good_steps, state.applied_steps, state.skipped_steps])
    assert int(optimizer.iterations.numpy()) == amp.applied_steps
    return rows


def case_trace(form):
    return fed(form, [GOOD, GOOD, GOOD, INF, GOOD, GOOD, NAN])


def case_accumulation(form):
    return fed(form, [GOOD, (1.5, 0.5), GOOD, INF, GOOD, GOOD], accumulate_steps=2)


def case_no_scale(form):
    return fed(form, [GOOD, (1.0, 2.0)], loss_scale="none")


def case_keras2(form):
    """A loop in Keras 2's calls; clipping by value comes before the optimizer looks."""
    with STRATEGY.scope():
        model = Probe([1.0])
        optimizer = keras2.LossScaleOptimizer(keras.optimizers.SGD(0.1), SCALE)
    scaler, rows = optimizer._amp_scaler, []

    def step(x):
        with tf.GradientTape() as tape:
            scaled = optimizer.get_scaled_loss(model(x))
        gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
        clipped = [tf.clip_by_value(gradient, -1.0, 1.0) for gradient in gradients]
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))

    step = tf.function(step) if form == "inside" else step
    run = lambda x: STRATEGY.run(step, (x,))  # noqa: E731
    run = tf.function(run) if form == "compiled" else run
    for pair in (GOOD, GOOD, GOOD, INF, GOOD, NAN):
        scale = scaler.read().scale
        run(batch(pair))
        state = scaler.read()
        rows.append([scale, copies(model.ws[0]), state.good_steps, state.applied_steps, state.skipped_steps])
    return rows


def case_clip(form):
    return fed(form, [(3.0, 5.0)], clip=lambda amp, optimizer: amp.clip_grad_norm(optimizer, 1.0))


def case_clip_value_hides_no_inf(form):
    return fed(form, [(3.0, -math.inf)], clip=lambda amp, optimizer: amp.clip_grad_value(optimizer, 1.0))


def case_discard(form):
    amp, (model,), (optimizer,) = session(accumulate_steps=2)

    def step(x, last):
        amp.backward(lambda: model(x), optimizer)
        (amp.step if last else amp.discard_step)(optimizer)

    run = spread(step, amp, form)
    for last in (True, False, True, True):
        run(batch(GOOD), last)
    return [copies(model.ws[0]), amp.applied_steps]


CONDITIONS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 2.0), (0.0, 0.0), (0.0, 0.0))
"""Of ``amp.skip_if``, on each replica; the fifth step overflows on one, where the condition does not hold."""


def case_skip_if(form):
    """With a loss scale, without one, and in windows, where the first micro-batch has the condition."""
    every = []
    for options in ({}, {"loss_scale": "none"}, {"accumulate_steps": 2}):
        amp, (model,), (optimizer,) = session(**options)

        def step(x, condition, amp=amp, model=model, optimizer=optimizer):
            amp.backward(lambda: model(x), optimizer)
            amp.skip_if(condition[0])
            amp.step(optimizer)

        run, rows = spread(step, amp, form), []
        for index, pair in enumerate(CONDITIONS):
            overflows = index == 4 and "loss_scale" not in options
            run(batch(INF if overflows else GOOD), batch(pair))
            if "accumulate_steps" in options:
                run(batch(GOOD), batch((0.0, 0.0)))
            rows.append([copies(model.ws[0]), amp.loss_scale, amp.applied_steps, amp.skipped_steps])
        every.append(rows)
    return every


def case_two_optimizers(form):
    amp, (first, second), (one, two) = session(optimizers=2)

    def step(x, y):
        amp.backward(lambda: first(x), one)
        amp.backward(lambda: second(y), two)
        amp.step(one)
        amp.step(two)

    run, rows = spread(step, amp, form), []
    for pair in (GOOD, INF, GOOD):
        run(batch(pair), batch(GOOD))
        rows.append([amp.loss_scale, copies(first.ws[0]), copies(second.ws[0]), amp.applied_steps, amp.skipped_steps])
    return rows


def case_masters(form):
    """Weights of 16 bits, updates that these cannot hold, a window that one replica alone cannot take."""
    rows = []
    for policy in ("float16", "bfloat16"):
        amp, (model,), (optimizer,) = session(policy=policy, master_weights=True, accumulate_steps=2)

        def step(x, amp=amp, model=model, optimizer=optimizer):
            amp.backward(lambda: model(x), optimizer)
            amp.step(optimizer)

        run = spread(step, amp, form)
        for pair in ((0.001, 0.002), (0.003, 0.001), INF, (0.5, 0.5), (0.002, 0.002), (0.001, 0.001)):
            run(batch(pair))
            (master,) = optimizer.inner_optimizer._amp_masters
            rows.append([copies(model.ws[0]), copies(master), amp.applied_steps, amp.skipped_steps])
    return rows


RECORDED = (
    ((1.0, 2.0), (4.0, 0.5)),
    ((0.0, 1.0), (8.0, 1.0)),
    ((1.0, 1.0), (math.inf, 1.0)),
    ((1e38, 1.0), (1e38, 1.0)),
)


def case_recording(form):
    """Every step of a loop is recorded; the third batch has an inf on one replica, the fourth overflows in the sum."""
    amp = ua.Amp("tensorflow", "mixed_bfloat16", loss_scale=SCALE)
    with STRATEGY.scope(), amp.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="dense")
        model, optimizer = keras.Sequential([keras.Input((2,)), layer]), keras.optimizers.SGD(0.125)
    model, optimizer = amp.prepare(model, optimizer)
    records = []

    def step(x):
        loss = amp.backward(lambda: tf.reduce_sum(model(x)), optimizer)
        amp.step(optimizer)
        return loss

    run = spread(step, amp, form)
    with amp.record(records.append, every=1):
        for first, second in RECORDED:
            run(rows_of(first, second))
    steps = [record for record in records if record["kind"] == "step"]
    rows = [[record["loss"], record["scale"], record["gradients"], record["activations"]] for record in steps]
    return (
        rows,
        [record["first"] for record in records if record["kind"] == "ranks"],
        [each["applied"] for each in steps],
    )


def rows_of(first, second):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda replica: tf.constant([(first, second)[replica.replica_id_in_sync_group]])
    )


def case_exhaustion(form):
    amp, (model,), (optimizer,) = session(loss_scale=ua.DynamicLossScale(max_consecutive_skips=3))
    seen = []

    class Observer:
        def on_step_skipped(self, state, report):
            seen.append([state.skipped_steps, list(report.tensors), report.loss_was_finite])

    amp.observe(Observer())

    def step(x):
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    run = spread(step, amp, form)
    try:
        for _ in range(10):
            run(batch(INF))
    except ua.LossScaleExhausted as error:
        return [error.skips, list(error.tensors), error.loss_was_finite, seen]
    return None


def case_sparse_rows(form):
    amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 1, "ones")])
        optimizer = keras.optimizers.SGD(0.5)
    model, optimizer = amp.prepare(model, optimizer)

    def step(rows):
        amp.backward(lambda: tf.reduce_sum(model(tf.cast(rows, tf.int32))), optimizer)
        amp.step(optimizer)

    run = spread(step, amp, form)
    run(batch(([0.0, 1.0], [1.0, 4.0])))
    return [np.asarray(copy).ravel().tolist() for copy in STRATEGY.experimental_local_results(native(model.weights[0]))]


def case_state_taken_over(form):
    """A state loaded before ``prepare`` moves with the scaler; one loaded after it reaches both copies."""
    state = ua.Amp("tensorflow", "float32", loss_scale=SCALE).state_dict()
    state["state"].update(scale=16.0, good_steps=2)
    rows = []
    for early in (True, False):
        amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
        if early:
            amp.load_state_dict(state)
        with STRATEGY.scope():
            model, optimizer = Probe([1.0]), keras.optimizers.SGD(0.1)
        model, optimizer = amp.prepare(model, optimizer)
        if not early:
            amp.load_state_dict(state)

        def step(x, amp=amp, model=model, optimizer=optimizer):
            amp.backward(lambda: model(x), optimizer)
            amp.step(optimizer)

        spread(step, amp, form)(batch(GOOD))
        rows.append([copies(model.ws[0]), copies(amp.backend.training.scaler.scale), amp.applied_steps])
    return rows


def case_traces(form):
    """How often the Python of a step runs, over six steps."""
    amp, (model,), (optimizer,) = session()
    calls = []

    def step(x):
        calls.append(None)
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    run = spread(step, amp, form)
    for _ in range(6):
        run(batch(GOOD))
    return len(calls)


@in_forms(*EAGER)
def case_refusals(form):
    messages = []

    def told(action):
        try:
            action()
        except ua.AmpError as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("nothing was refused")

    amp, (model,), (optimizer,) = session()
    told(lambda: amp.backward(lambda: model(tf.ones(1)), optimizer))
    STRATEGY.run(lambda: amp.backward(lambda: model(tf.ones(1)), optimizer))
    told(lambda: amp.step(optimizer))
    plain = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
    probe, sgd = plain.prepare(Probe([1.0]), keras.optimizers.SGD(0.1))
    told(lambda: STRATEGY.run(lambda: plain.backward(lambda: probe(tf.ones(1)), sgd)))
    with STRATEGY.scope():
        mirrored = Probe([1.0])
        inner = keras.optimizers.SGD(0.1)
    told(lambda: ua.Amp("tensorflow", "float32").prepare(mirrored, keras.optimizers.SGD(0.1)))
    told(lambda: ua.Amp("tensorflow", "float32").prepare(Probe([1.0]), inner))
    told(lambda: ua.Amp("tensorflow", "float32").prepare(mirrored, Probe([1.0]), inner))
    told(lambda: amp.prepare(Probe([1.0]), keras.optimizers.SGD(0.1)))
    amp, (model,), (optimizer,) = session()
    model.compile(optimizer, lambda target, output: output, jit_compile=True)
    x = np.float32([1.0, 1.0])
    told(lambda: model.fit(x, x, batch_size=2, verbose=0))
    return messages


OTHER_FILES = (
    replica_closing_cases, replica_difference_cases, replica_fit_cases, replica_fit_difference_cases,
    replica_reduction_cases, replica_update_cases, replica_xla_cases,
)  # fmt: skip

if __name__ == "__main__":
    warnings.simplefilter("ignore", ua.AmpWarning)
    cases = {
        name[5:]: case
        for module in (sys.modules[__name__], *OTHER_FILES)
        for name, case in vars(module).items()
        if name.startswith("case_")
    }
    answer_requests(lambda case, form: cases[case](form))
