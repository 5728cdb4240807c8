"""How often compiled steps are traced, and what is said of it."""

import warnings

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import batch, keras, mean_square, prepared  # noqa: E402

SCALE = ua.DynamicLossScale(initial_scale=4.0)
XLA = {"tensorflow": {"xla": True}}


def counted(extra=lambda x: 0.0, **options):
    """A compiled step of (x, y, rate) that counts how often it is traced."""
    amp, model, optimizer = prepared("float32", loss_scale=SCALE, **options)
    traces = []

    @amp.compile
    def train_step(x, y, rate=1.0):
        traces.append(x.shape)
        loss = amp.backward(lambda: mean_square(model(x), y) * rate + extra(x), optimizer)
        amp.step(optimizer)
        return loss

    return train_step, traces


def messages(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if issubclass(each.category, ua.errors.CompileWarning)]


def test_a_smaller_last_batch_is_traced_once_for_all_sizes():
    step, traces = counted()
    assert messages(lambda: [step(*batch(rows)) for rows in (16, 16, 7, 16, 5, 3, 16, 2)]) == []
    assert [tuple(shape) for shape in traces] == [(16, 4), (None, 4)]


def test_a_step_that_needs_its_sizes_is_traced_for_each():
    """``x.shape[0]`` is None in a trace that serves all sizes, and nothing can be made of that."""
    step, traces = counted(lambda x: tf.reduce_sum(tf.zeros((x.shape[0], 1))))
    (message,) = messages(lambda: [step(*batch(rows)) for rows in (16, 7, 5, 16, 7, 3)])
    assert [shape[0] for shape in traces] == [16, None, 7, 5, 16, 3]
    assert "x changed from float32 (5, 4) to float32 (16, 4), y changed" in message
    assert "drop_remainder=True" in message


def test_python_numbers():
    step, traces = counted()
    said = messages(lambda: [step(*batch(), rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)])
    assert len(traces) == 6
    assert said == [
        "amp.compile: train_step was traced 4 times, which takes far longer than running it; before the last time rate "
        "changed from 0.3 to 0.4; pass numbers that change as tensors (tf.constant, tf.Variable)"
    ]
    fed, traces = counted()
    assert messages(lambda: [fed(*batch(), tf.constant(rate)) for rate in (0.1, 0.2, 0.3, 0.4, 0.5)]) == []
    assert len(traces) == 1


def test_by_name_or_by_place_is_one_trace():
    step, traces = counted()
    x, y = batch()
    step(x, y)
    step(x, y=y)
    step(y=y, x=x, rate=1.0)
    assert len(traces) == 1


def test_xla_compiles_for_each_shape_and_says_so():
    step, traces = counted(backend_options=XLA)
    (message,) = messages(lambda: [step(*batch(rows)) for rows in (16, 8, 4, 2, 16, 8)])
    assert [shape[0] for shape in traces] == [16, 8, 4, 2]
    assert "traced and compiled by XLA 4 times" in message
    assert "x changed from float32 (4, 4) to float32 (2, 4), y changed" in message


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (
            [tf.float32, tf.float64, tf.int32, tf.int64],
            "extra changed from int32 (1,) to int64 (1,); give each",
        ),
        ([None, 1, "a", b"b"], "extra changed from 'a' to b'b'"),
        ([[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]], "extra[3] changed from none to 4; pass the same arguments"),
        ([{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}], "extra['a'] changed from 3 to 4; pass numbers"),
    ],
    ids=["dtype", "kind", "structure", "mapping"],
)
def test_what_changed_is_named(values, part):
    amp, _, _ = prepared("float32")
    step = amp.compile(lambda extra: tf.constant(0))
    values = [tf.ones(1, value) if isinstance(value, tf.DType) else value for value in values]
    (message,) = messages(lambda: [step(value) for value in values])
    assert part in message


def test_each_place_in_a_window_is_one_trace():
    step, traces = counted(accumulate_steps=5)
    assert messages(lambda: [step(*batch()) for _ in range(10)]) == []
    assert len(traces) == 5


def test_strict_refuses():
    step, _ = counted(strict=True)
    with pytest.raises(ua.UnsupportedError, match="rate changed from 3 to 4"):
        for rate in range(1, 6):
            step(*batch(), rate)


def test_all_shapes_train_as_eager_does():
    weights = []
    for mode in ("off", "default", "max"):
        amp, model, optimizer = prepared("float32", loss_scale=SCALE)
        model.set_weights([np.linspace(-0.5, 0.5, w.size).reshape(w.shape) for w in model.get_weights()])

        def step(x, y, amp=amp, model=model, optimizer=optimizer):
            loss = amp.backward(lambda: mean_square(model(x), y), optimizer)
            amp.step(optimizer)
            return loss

        run = amp.compile(step, mode=mode)
        for rows in (16, 7, 16, 5):
            run(*batch(rows))
        weights.append(model.get_weights())
    for eager, *others in zip(*weights, strict=True):
        for other in others:
            np.testing.assert_allclose(other, eager, rtol=1e-4, atol=1e-6)


def test_accumulation_in_a_function_of_ones_own_is_refused():
    amp, model, optimizer = prepared("float32", loss_scale=SCALE, accumulate_steps=2)
    x, y = batch()

    @tf.function(autograph=False)
    def step():
        amp.backward(lambda: mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    with pytest.raises(ua.StepOrderError, match=r"use amp\.compile in its place"):
        step()


def test_max_and_the_graph_rewrite_are_refused_together():
    options = {"backend_options": {"tensorflow": {"mode": "graph_rewrite"}}}
    with pytest.raises(ua.ConfigError, match="exclude each other"):
        ua.Amp("tensorflow", "float32", compile="max", **options)
    amp = ua.Amp("tensorflow", "float32", **options)
    model, optimizer = amp.prepare(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), keras.optimizers.SGD())
    step = amp.compile(lambda x: amp.backward(lambda: tf.reduce_sum(model(x)), optimizer), mode="max")
    with pytest.raises(ua.ConfigError, match="exclude each other"):
        step(tf.ones((1, 4)))
