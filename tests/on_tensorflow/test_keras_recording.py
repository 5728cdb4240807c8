"""Recording on TensorFlow: separate traces, layers whose tensors cannot leave, the graph rewrite."""

import numpy as np
import pytest
import tensorflow as tf

import unifiedamp as ua

layers = tf.keras.layers


def run(model, x, policy="float32", compile=True, **options):
    amp = ua.Amp("tensorflow", policy, loss_scale=8.0, **options)
    optimizer = tf.keras.optimizers.SGD(0.01)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x):
        loss = amp.backward(lambda: tf.reduce_mean(tf.square(model(x))), optimizer)
        amp.step(optimizer)
        return loss

    step = amp.compile(step) if compile else step
    records = []
    with amp.record(records.append, every=2):
        losses = [float(step(tf.constant(x, tf.float32))) for _ in range(4)]
    amp.close()
    return losses, [record for record in records if record["kind"] == "step"], step


def outputs(record):
    return [row["layer"] for row in record["activations"] if row["place"] == "output" and row["layer"]]


def dense():
    return tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(3, name="one"), layers.Dense(2, name="two")])


def test_recorded_and_plain_steps_are_two_traces():
    _, records, step = run(dense(), np.ones((2, 4)))
    assert [record["step"] for record in records] == [1, 2, 4]
    assert all(outputs(record) == ["one", "two"] for record in records)
    functions = step.__wrapped__._functions
    assert len(functions) == 2
    assert [function.experimental_get_tracing_count() for function in functions.values()] == [1, 1]


def test_each_shape_has_its_own_trace_and_numbers():
    amp = ua.Amp("tensorflow", "float32", loss_scale=1.0)
    model, optimizer = amp.prepare(dense(), tf.keras.optimizers.SGD(0.01))

    @amp.compile
    def step(x):
        loss = amp.backward(lambda: tf.reduce_mean(tf.square(model(x))), optimizer)
        amp.step(optimizer)
        return loss

    records = []
    with amp.record(records.append, every=1):
        for rows, size in ((2, 1.0), (3, 1000.0), (2, 1.0)):
            step(tf.fill((rows, 4), size))
    largest = [record["activations"][0]["largest"] for record in records if record["kind"] == "step"]
    assert largest == [1.0, 1000.0, 1.0]


@pytest.mark.parametrize("compile", [True, False])
def test_what_runs_inside_a_loop_is_seen_from_outside(compile):
    x = tf.keras.Input((5, 4))
    y = layers.TimeDistributed(layers.Dense(3, name="inner"), name="each")(x)
    model = tf.keras.Model(x, layers.Dense(2, name="head")(layers.LSTM(6, name="lstm")(y)))
    losses, records, _ = run(model, np.random.default_rng(0).normal(size=(2, 5, 4)), compile=compile)
    assert {"each", "lstm", "head"} <= set(outputs(records[-1]))
    assert np.isfinite(losses).all()
    assert all(np.isfinite(row["largest"]) for record in records for row in record["activations"])


def test_a_model_called_inside_a_function_of_the_users():
    model = dense()
    called = tf.function(lambda x: model(x, training=True))
    amp = ua.Amp("tensorflow", "float32", loss_scale=1.0)
    model, optimizer = amp.prepare(model, tf.keras.optimizers.SGD(0.01))
    records = []
    with amp.record(records.append):
        amp.backward(lambda: tf.reduce_mean(tf.square(called(tf.ones((2, 4))))), optimizer)
        amp.step(optimizer)
    (record,) = [record for record in records if record["kind"] == "step"]
    assert record["activations"] == []
    assert len(record["gradients"]) == 4


@pytest.mark.parametrize("watch", ["record", "forecast"])
def test_a_step_in_a_loop_of_a_compiled_step_is_refused(watch):
    model = dense()
    amp = ua.Amp("tensorflow", "float32", loss_scale=1.0)
    model, optimizer = amp.prepare(model, tf.keras.optimizers.SGD(0.01))

    def body(i):
        amp.backward(lambda: tf.reduce_mean(tf.square(model(tf.ones((2, 4))))), optimizer)
        amp.step(optimizer)
        return i + 1

    @amp.compile
    def step():
        tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])

    with amp.record(print) if watch == "record" else amp.forecast(steps=1) as run:
        with pytest.raises(ua.UnsupportedError, match=f"amp.{watch}: amp.step runs in a loop"):
            step()
        run.stop()
    step()
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
def test_under_the_graph_rewrite():
    options = {"tensorflow": {"mode": "graph_rewrite"}}
    _, records, _ = run(dense(), np.ones((2, 4)), policy="mixed_bfloat16", backend_options=options)
    assert all(outputs(record) == ["one", "two"] for record in records)


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
def test_a_layer_that_overflows_float16_is_named():
    amp = ua.Amp("tensorflow", "mixed_float16")
    with amp.scope():
        model = dense()
    model.get_layer("two").set_weights([np.full((3, 2), 60000.0), np.zeros(2)])
    model, optimizer = amp.prepare(model, tf.keras.optimizers.SGD(0.01))
    records = []
    with amp.record(records.append):
        amp.backward(lambda: tf.reduce_mean(tf.square(model(tf.ones((2, 4)) * 100.0))), optimizer)
        amp.step(optimizer)
    found = records[-1]["non_finite"]["first_activation"]
    assert (found["layer"], found["kind"], found["place"]) == ("two", "Dense", "output")


def test_a_trace_that_fails_leaves_the_recorder_at_work():
    amp = ua.Amp("tensorflow", "float32", loss_scale=1.0)
    model, optimizer = amp.prepare(dense(), tf.keras.optimizers.SGD(0.01))
    fail = [True]

    @amp.compile
    def step(x):
        loss = amp.backward(lambda: tf.reduce_mean(tf.square(model(x))), optimizer)
        if fail:
            raise ZeroDivisionError
        amp.step(optimizer)
        return loss

    records = []
    with amp.record(records.append):
        with pytest.raises(Exception, match="ZeroDivisionError"):
            step(tf.ones((2, 4)))
        fail.clear()
        step(tf.ones((2, 4)))
    (record,) = [record for record in records if record["kind"] == "step"]
    assert (record["step"], outputs(record)) == (1, ["one", "two"])


class OneInAnother(tf.keras.Model):
    """Layers of one name and one shape, in models of one name, which are built when they are called."""

    def __init__(self):
        super().__init__()
        self.first, self.second = self.inner(), self.inner()

    def inner(self):
        return tf.keras.Sequential(
            [layers.Dense(1, name="dense", use_bias=False, kernel_initializer="ones")], name="one"
        )

    def call(self, x):
        return self.first(x) + 2 * self.second(x)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_moments_of_equal_names_are_those_of_their_weights(policy, compile):
    """Gradients of ones, and of twos: Adam's first moments are 0.1 of them, the second ones 0.001 of their squares."""
    amp, records = ua.Amp("tensorflow", policy), []
    with amp.scope():
        model = OneInAnother()
        model(tf.ones((1, 1)))
    model, optimizer = amp.prepare(model, tf.keras.optimizers.Adam(0.1))

    def step():
        amp.backward(lambda: tf.reduce_sum(tf.cast(model(tf.ones((1, 1))), tf.float32)), optimizer)
        amp.step(optimizer)

    with amp.record(records.append, every=1, states=True):
        (amp.compile(step) if compile else step)()
    amp.close()
    (found,) = (record["states"] for record in records if record["kind"] == "step")
    assert len(found) == 2
    for each, gradient in zip(found.values(), (1.0, 2.0), strict=True):
        moments = sorted((state["norm"] for name, state in each.items() if name not in ("weight", "update")))
        np.testing.assert_allclose(moments, [0.001 * gradient**2, 0.1 * gradient], rtol=1e-5)
