"""Sessions on two replicas, for the cases of ``test_replicas.py``; importing it makes the CPU count as two devices."""

from __future__ import annotations

import math

import tensorflow as tf

import unifiedamp as ua
from unifiedamp_tensorflow.conformance.harness import Probe
from unifiedamp_tensorflow.conformance.replicas import replicas_on_cpu
from unifiedamp_tensorflow.internals import native

keras = tf.keras
STRATEGY = replicas_on_cpu(2)
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
GOOD, INF, NAN = (0.5, 0.5), (0.5, math.inf), (math.nan, 0.5)
FORMS = ("eager", "compiled", "inside", "max")
MODES = {"compiled": "default", "max": "max"}
EAGER, FITTED, BY_XLA = ("eager",), ("eager", "compiled"), ("compiled", "max")
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
    """Run ``step`` on both replicas: eagerly, all of it compiled (by XLA too: "max"), or a compiled step inside."""
    if form == "inside":
        step = amp.compile(step)
    run = lambda *args: STRATEGY.run(step, args)  # noqa: E731
    return amp.compile(run, mode=MODES[form]) if form in MODES else run


def batch(values):
    return STRATEGY.experimental_distribute_values_from_function(
        lambda replica: tf.constant([values[replica.replica_id_in_sync_group]])
    )


def copies(variable):
    return [
        round(float(copy.numpy().reshape(-1)[0]), 6) for copy in STRATEGY.experimental_local_results(native(variable))
    ]


def in_forms(*forms):
    """Run a case in these forms alone."""

    def mark(case):
        case.forms = forms
        return case

    return mark
