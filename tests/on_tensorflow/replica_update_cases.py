"""Cases of ``replica_cases.py``: updates on two replicas that XLA compiles, against those without it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from replica_sessions import BY_XLA, MODES, STRATEGY, in_forms, keras
from replica_xla_cases import (
    ROWS,
    copies,
    cross_entropy,
    dense,
    everything,
    global_batches,
    momentum,
    per_replica,
    prepared,
    small,
    trained,
)


def scheduled():
    """AdamW with a schedule, and a variable that does not decay."""
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.01])
    made = keras.optimizers.AdamW(rates, weight_decay=0.1)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


def clipped():
    """Changes gradients before it updates."""
    return keras.optimizers.AdamW(0.1, weight_decay=0.1, clipnorm=0.5)


class Telling(keras.optimizers.SGD):
    """Asks the host in each update, which XLA cannot."""

    def update_step(self, gradient, variable, *rest):
        super().update_step(tf.numpy_function(lambda values: values * 2, [gradient], gradient.dtype), variable, *rest)


@in_forms(*BY_XLA)
def case_updates(form):
    rows = global_batches((4,), 3)
    return {
        "scheduled": trained(form, small, rows, optimizer=scheduled),
        "clipped": trained(form, small, rows, optimizer=clipped),
        "on_host": trained(form, small, rows, optimizer=lambda: Telling(0.1)),
        "kahan": trained(form, small, rows, "bfloat16;update=kahan", loss_scale=None),
    }


def constrained():
    return keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(3, kernel_initializer=dense(), kernel_constraint=keras.constraints.MaxNorm(0.5)),
    ])  # fmt: skip


def skipping(form, make, optimizer, others=()):
    """Train with overflows on each replica in turn; return weights, which steps changed nothing, and counts.

    ``others``: variables beside the optimizer's that steps may change.
    """
    amp, model, optimizer = prepared(make, optimizer=optimizer)

    def replica_step(x, y):
        loss = amp.backward(lambda: cross_entropy(y, model(x)), optimizer)
        amp.step(optimizer)
        return loss

    @amp.compile(mode=MODES[form])
    def step(x, y):
        return STRATEGY.reduce("SUM", STRATEGY.run(replica_step, (x, y)), axis=None)

    def held():
        variables = optimizer.variables
        states = variables() if callable(variables) else variables
        return everything(model), copies([*states, *others])

    rng, kept = np.random.default_rng(0), []
    for overflow in (None, 0, None, 1):
        x, before = rng.normal(size=(2, ROWS, 4)).astype("f"), held()
        if overflow is not None:
            x[overflow, 0, 0] = np.inf
        step(per_replica(x), per_replica(rng.integers(0, 3, (2, ROWS))))
        kept.append(held() == before)
    steps = [amp.applied_steps, amp.skipped_steps, int(optimizer.iterations.numpy())]
    return [everything(model), kept, steps, amp.loss_scale]


def counting(calls):
    """Return an optimizer of which this object alone counts its updates, in a variable that is put into ``calls``."""
    made, native = keras.optimizers.SGD(0.1), keras.optimizers.SGD.update_step
    calls.append(tf.Variable(0.0, trainable=False))

    def update_step(gradient, variable, *rest):
        calls[0].assign_add(1.0)
        native(made, gradient, variable, *rest)

    object.__setattr__(made, "update_step", update_step)
    return made


@in_forms(*BY_XLA)
def case_skipped(form):
    calls = []
    return {
        "momentum": skipping(form, small, momentum),
        "scheduled": skipping(form, small, scheduled),
        "constrained": skipping(form, constrained, momentum),
        "nadam": skipping(form, small, lambda: keras.optimizers.Nadam(0.1)),
        "replaced": skipping(form, small, lambda: counting(calls), calls),
    }
