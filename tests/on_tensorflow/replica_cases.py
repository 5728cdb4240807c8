"""What happens on two replicas: run by ``test_replicas.py`` in a process whose CPU counts as two devices.

Each case returns plain JSON values; asserting is left to the tests.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import warnings

import numpy as np
import tensorflow as tf

import unifiedamp as ua
from unifiedamp.compat import keras2
from unifiedamp.integrations.keras import AmpCallback
from unifiedamp_tensorflow.conformance.harness import Probe
from unifiedamp_tensorflow.conformance.replicas import two_devices
from unifiedamp_tensorflow.internals import native

keras = tf.keras
STRATEGY = two_devices()
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
GOOD, INF, NAN = (0.5, 0.5), (0.5, math.inf), (math.nan, 0.5)
FORMS = ("eager", "compiled", "inside")
WEIGHTS = "model.weights.h5" if hasattr(keras.optimizers.SGD, "scale_loss") else "checkpoint"


def session(optimizers=1, policy="float32", **options):
    options.setdefault("loss_scale", SCALE)
    amp = ua.Amp("tensorflow", policy, **options)
    with STRATEGY.scope(), amp.scope():
        models = [Probe([1.0]) for _ in range(optimizers)]
        natives = [keras.optimizers.SGD(0.1) for _ in models]
    prepared = amp.prepare(*models, *natives)
    return amp, prepared[:optimizers], prepared[optimizers:]


def spread(step, amp, form):
    """Run ``step`` on both replicas: strategy.run eagerly, all of it compiled, or a compiled step inside."""
    if form == "inside":
        step = amp.compile(step)
    run = lambda *args: STRATEGY.run(step, args)  # noqa: E731
    return amp.compile(run) if form == "compiled" else run


def batch(values):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda replica: tf.constant([values[replica.replica_id_in_sync_group]])
    )


def copies(variable):
    return [
        round(float(copy.numpy().reshape(-1)[0]), 6) for copy in STRATEGY.experimental_local_results(native(variable))
    ]


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


def averaged(form, pairs, **options):
    """Feed one pair of gradients a step; return what the model and its average are on both replicas after each."""
    amp, (model,), (optimizer,) = session(**options)
    ema, rows = amp.ema(model, 0.5), []

    def step(x):
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    run = spread(step, amp, form)
    for pair in pairs:
        run(batch(pair))
        own = copies(model.ws[0])
        with ema.swapped():
            inside = copies(model.ws[0])
        rows.append([own, inside, copies(model.ws[0]), ema.updates])
    return rows


def case_ema(form):
    return averaged(form, [GOOD, GOOD, INF, (2.0, 0.5), NAN, GOOD])


def case_ema_without_a_scale(form):
    return averaged(form, [GOOD, (2.0, 0.5), GOOD], loss_scale="none")


def case_ema_in_fit(form):
    """With the session's loss scale, and without, where Keras calls the optimizer itself."""
    rows = []
    for scale in (SCALE, "none"):
        amp, (model,), (optimizer,) = session(loss_scale=scale)
        ema = amp.ema(model, 0.5)
        with STRATEGY.scope():
            model.compile(optimizer=optimizer, loss=lambda target, output: output, run_eagerly=False)
        for _ in range(3):
            x = np.float32([1.0, 1.0])
            model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
            own = copies(model.ws[0])
            with ema.swapped():
                inside = copies(model.ws[0])
            rows.append([own, inside, copies(model.ws[0]), ema.updates])
    return rows


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


def fitted(form, make, bad=(), loss_scale=SCALE, policy="float32", callback=False):
    amp = ua.Amp("tensorflow", policy, loss_scale=loss_scale)
    with STRATEGY.scope(), amp.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        model.set_weights([np.linspace(-1, 1, w.size, dtype=np.float32).reshape(w.shape) for w in model.get_weights()])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        if make:
            model, optimizer = amp.prepare(model, optimizer)
        model.compile(optimizer, "mse", run_eagerly=form == "eager")
    x = np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32)
    y = x[:, :1] - x[:, 1:]
    for row in bad:
        x[row] = np.inf
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[AmpCallback(amp)] if callback else [])
    both = [
        [np.asarray(copy).tolist() for copy in STRATEGY.experimental_local_results(native(w))] for w in model.weights
    ]
    told = {name: [float(value) for value in values] for name, values in history.history.items()}
    return [both, amp.applied_steps, amp.skipped_steps, amp.loss_scale, *([told] if callback else [])]


def case_fit(form):
    return [fitted(form, True), fitted(form, False)]


def case_fit_skips(form):
    """The second batch's last row is bad: on one replica only."""
    return fitted(form, True, bad=[15])


def case_fit_logs(form):
    return [fitted(form, True, bad=[15], callback=True), fitted(form, True, callback=True)]


def case_fit_saved(form):
    """Weights of a mirrored model hold the session."""
    states = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            amp, (model,), (optimizer,) = session()
            with STRATEGY.scope():
                model.compile(optimizer, lambda target, output: output)
            x = np.float32([1.0, 1.0, 1.0, math.inf])
            if not states:
                model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
                model.save_weights(f"{folder}/{WEIGHTS}")
            else:
                model.load_weights(f"{folder}/{WEIGHTS}")
            states.append(amp.state_dict()["state"])
    return states


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
    amp, (model,), (optimizer,) = session(compile="max")

    def backward():
        amp.backward(lambda: model(tf.ones(1)), optimizer)

    told(amp.compile(lambda: STRATEGY.run(backward)))
    told(lambda: STRATEGY.run(amp.compile(backward)))
    told(lambda: amp.record(messages.append))
    return messages


if __name__ == "__main__":
    warnings.simplefilter("ignore", ua.AmpWarning)
    cases = {name[5:]: case for name, case in list(globals().items()) if name.startswith("case_")}
    results = {name: {form: case(form) for form in FORMS} for name, case in cases.items()}
    print(json.dumps(results), file=open(sys.argv[1], "w"))  # noqa: SIM115
