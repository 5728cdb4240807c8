"""Cases of ``replica_cases.py``: Keras's ``fit`` on two replicas, and averages of weights there."""

from __future__ import annotations

import math
import tempfile

import numpy as np
from replica_sessions import (
    EAGER,
    FITTED,
    GOOD,
    INF,
    NAN,
    SCALE,
    STRATEGY,
    WEIGHTS,
    batch,
    copies,
    in_forms,
    keras,
    session,
    spread,
)  # fmt: skip

import unifiedamp as ua
from unifiedamp.integrations.keras import AmpCallback
from unifiedamp_tensorflow.internals import native


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


@in_forms(*EAGER)
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


@in_forms(*FITTED)
def case_fit(form):
    return [fitted(form, True), fitted(form, False)]


@in_forms(*FITTED)
def case_fit_skips(form):
    """The second batch's last row is bad: on one replica only."""
    return fitted(form, True, bad=[15])


@in_forms(*FITTED)
def case_fit_logs(form):
    return [fitted(form, True, bad=[15], callback=True), fitted(form, True, callback=True)]


@in_forms(*EAGER)
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
