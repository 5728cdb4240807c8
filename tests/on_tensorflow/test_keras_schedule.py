"""A policy over the course of a run in Keras's ``fit``, in each of its forms, and where steps cannot be counted."""

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras, keras_scaled, keras_unscaled  # noqa: E402

SCHEDULE = {0: "float32", 3: "mixed_bfloat16"}


def fitted(session, weights=None, **form):
    amp = ua.Amp("tensorflow", **session)
    with amp.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    if weights is None:
        rng = np.random.default_rng(0)
        weights = [rng.normal(size=each.shape) for each in model.get_weights()]
    model.set_weights(weights)
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.25))
    model.compile(optimizer=optimizer, loss="mse", **form)
    return amp, model


def feed(model, batches, *callbacks):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(48, 8)).astype(np.float32), rng.normal(size=(48, 2)).astype(np.float32)
    model.fit(x[batches], y[batches], batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)


BEFORE, AFTER = slice(0, 24), slice(24, 48)


@pytest.mark.parametrize(
    "form", [{"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": False, "steps_per_execution": 3}], ids=str
)
def test_fit_follows_the_schedule(form):
    amp, model = fitted({"schedule": SCHEDULE}, **form)
    feed(model, slice(0, 48))
    _, oracle = fitted({"policy": "float32"}, **form)
    feed(oracle, BEFORE)
    _, oracle = fitted({"policy": "mixed_bfloat16"}, oracle.get_weights(), **form)
    feed(oracle, AFTER)
    for one, other in zip(model.get_weights(), oracle.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert amp.policy == ua.Policy.parse("mixed_bfloat16")
    assert (amp.applied_steps, amp.state_dict()["schedule"]["step"]) == (6, 6)


@pytest.mark.parametrize("moment", ["before fit", "when fit begins"])
def test_windows_are_counted_on_from_a_checkpoint(tmp_path, moment):
    """Its window was open: the next micro-batch ends it."""
    amp, model = fitted({"schedule": SCHEDULE, "accumulate_steps": 2}, jit_compile=False)
    feed(model, slice(0, 24))
    checkpoint, path = tf.train.Checkpoint(model=model, optimizer=model.optimizer), str(tmp_path / "model.weights.h5")
    saved = checkpoint.save(str(tmp_path / "ckpt"))
    model.save_weights(path)
    found = [amp.state_dict()["schedule"]["step"]]
    for _ in range(2):
        if moment == "before fit":
            checkpoint.restore(saved)
            feed(model, slice(24, 32))
        else:
            feed(
                model, slice(24, 32), keras.callbacks.LambdaCallback(on_train_begin=lambda _: model.load_weights(path))
            )
        found.append(amp.state_dict()["schedule"]["step"])
    assert found == [1, 2, 3]


def test_a_compiled_call_inside_fits_own_step():
    """The step is counted by ``fit``, whatever was compiled before or in it."""

    class Looking(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)
            self.look = lambda x: x

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            self.look(data[0])
            return super().train_step(data)

    amp = ua.Amp("tensorflow", schedule=SCHEDULE)
    with amp.scope():
        model = Looking()
        model(tf.ones((1, 8)))
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.25))
    model.look = amp.compile(lambda x: x + 1.0)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    feed(model, slice(0, 48))
    assert (amp.applied_steps, amp.state_dict()["schedule"]["step"]) == (6, 6)
    assert amp.policy == ua.Policy.parse("mixed_bfloat16")


def test_steps_that_cannot_be_counted_are_refused():
    amp, model = fitted({"schedule": SCHEDULE})
    optimizer = model.optimizer

    @tf.function(autograph=False)
    def session_calls(x):
        amp.backward(lambda: tf.reduce_sum(model(x)), optimizer)
        amp.step(optimizer)

    @tf.function(autograph=False)
    def kerass_calls(x):
        with tf.GradientTape() as tape:
            loss = keras_scaled(optimizer, tf.reduce_sum(model(x)))
        gradients = keras_unscaled(optimizer, tape.gradient(loss, model.trainable_weights))
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    @amp.compile
    def loop(x):
        for _ in tf.range(4):
            amp.backward(lambda: tf.reduce_sum(model(x)), optimizer)
            amp.step(optimizer)

    with pytest.raises(ua.UnsupportedError, match="schedule cannot be counted.*Python's range"):
        loop(tf.ones((4, 8)))
    for step in (session_calls, kerass_calls):
        with pytest.raises(ua.UnsupportedError, match=r"schedule cannot be counted.*amp\.compile"):
            step(tf.ones((4, 8)))


def test_the_graph_rewrite_has_one_policy():
    with pytest.raises(ua.UnsupportedError, match=r"schedule=.*mode='keras' can change it"):
        ua.Amp("tensorflow", schedule=SCHEDULE, backend_options={"tensorflow": {"mode": "graph_rewrite"}})
