"""Compiled steps: retraces, failures and order of calls, where Python runs only while tracing."""

import math

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import batch, keras, keras_scaled, keras_unscaled, mean_square, mlp, prepared  # noqa: E402

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)


def loop(amp, model, optimizer):
    def step(x, y):
        loss = amp.backward(lambda: mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    return step


@pytest.mark.parametrize("window", [1, 3])
def test_a_new_signature_inside_a_window(window):
    """Batches of two shapes in turn, against the same steps run eagerly."""
    weights = []
    for compiled in (False, True):
        amp, model, optimizer = prepared("float32", loss_scale=SCALE, accumulate_steps=window)
        model.set_weights([np.full_like(weight, 0.1) for weight in model.get_weights()])
        step = loop(amp, model, optimizer)
        step = amp.compile(step) if compiled else step
        for index in range(6):
            step(*batch(8 if index % 2 else 16))
        weights.append(model.get_weights())
        assert amp.applied_steps == 6 // window
    for eager, traced in zip(*weights, strict=True):
        np.testing.assert_allclose(traced, eager, rtol=1e-5, atol=1e-6)


def test_a_python_argument_picks_the_order_of_calls():
    """The end of each trace is its own, also for traces of one function."""
    amp, model, optimizer = prepared("float32", loss_scale=SCALE)

    @amp.compile
    def maybe(x, y, train):
        loss = amp.backward(lambda: mean_square(model(x), y), optimizer)
        if train:
            amp.step(optimizer)
        else:
            amp.discard_step(optimizer)
        return loss

    for train in (True, False, True, False, True):
        maybe(*batch(), train)
    assert amp.applied_steps == 3


def test_a_failing_call_leaves_the_order_of_calls():
    amp, model, optimizer = prepared("float32", loss_scale=SCALE)
    fail = [True]

    def step(x, y):
        with amp.autocast():
            loss = mean_square(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        if fail[0]:
            raise KeyError("while tracing")
        amp.step(optimizer)
        return loss

    step = amp.compile(step)
    with pytest.raises(KeyError):
        step(*batch())
    with pytest.raises(ua.StepOrderError, match="no loss went through"):
        amp.step(optimizer)
    fail[0] = False
    step(*batch())

    def fails():
        tf.debugging.Assert(tf.constant(False), ["at run time"])

    with pytest.raises(tf.errors.InvalidArgumentError):
        amp.compile(fails)()
    step(*batch())
    assert amp.applied_steps == 2


def test_step_compiled_apart_from_backward():
    amp, model, optimizer = prepared("float32", loss_scale=SCALE)
    x, y = batch()
    backward = amp.compile(lambda: amp.backward(lambda: mean_square(model(x), y), optimizer))
    for _ in range(2):
        backward()
        with pytest.raises(ua.StepOrderError, match="another compiled function"):
            amp.compile(lambda: amp.step(optimizer) and None)()
        with pytest.raises(ua.StepOrderError, match="another compiled function"):
            amp.step(optimizer)
        amp.discard_step(optimizer)
    amp.backward(lambda: mean_square(model(x), y), optimizer)
    with pytest.raises(ua.StepOrderError, match="another compiled function"):
        amp.compile(lambda: amp.step(optimizer) and None)()


def test_a_mistake_is_told_in_the_words_of_an_eager_step():
    """AutoGraph puts the user's code into messages of errors that pass it."""
    told = []
    for compiled in (False, True):
        amp, _, optimizer = prepared(loss_scale=8.0)

        def step(amp=amp, optimizer=optimizer):
            amp.step(optimizer)

        with pytest.raises(ua.StepOrderError) as caught:
            (amp.compile(step) if compiled else step)()
        told.append((type(caught.value), str(caught.value)))
    assert told[0] == told[1]


def test_results_cannot_be_read_while_tracing():
    amp, model, optimizer = prepared("float32", loss_scale=SCALE)

    @amp.compile
    def step(x, y):
        amp.backward(lambda: mean_square(model(x), y), optimizer)
        return tf.constant(amp.step(optimizer).applied)

    with pytest.raises(ua.StepOrderError, match="cannot be read"):
        step(*batch())


def test_autograph_converts_the_users_function_and_leaves_ours():
    amp, model, optimizer = prepared("float32", loss_scale=SCALE)

    @amp.compile
    def step(x, y):
        loss = amp.backward(lambda: mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        if loss > 1e9:
            loss = tf.constant(-1.0)
        return loss

    assert float(step(*batch())) > 0


@pytest.mark.parametrize("xla", [False, True])
def test_exhaustion_within_fifty_calls_names_the_tensors(xla):
    amp, model, optimizer = prepared(
        "float32", loss_scale=ua.DynamicLossScale(max_consecutive_skips=5),
        backend_options={"tensorflow": {"xla": xla}},
    )  # fmt: skip
    step = amp.compile(loop(amp, model, optimizer))
    x, y = batch()
    with pytest.raises(ua.LossScaleExhausted) as caught:
        for _ in range(50):
            step(x * math.inf, y)
    assert "hidden.kernel" in caught.value.tensors
    assert caught.value.loss_was_finite is False


def test_a_loss_of_one_region_is_differentiated_after_another():
    """Both losses of a pair are computed before either is scaled."""

    def pair():
        amp = ua.Amp("tensorflow", "float32", loss_scale=SCALE)
        return (amp, *amp.prepare(mlp(), mlp(), keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)))

    for compile_it in (False, True):
        amp, first, second, one, two = pair()

        def step(x, y, amp=amp, first=first, second=second, one=one, two=two):
            with amp.autocast():
                fake = first(x)
                loss_one = mean_square(second(tf.concat([fake, fake], 1)), y)
            with amp.autocast():
                loss_two = mean_square(second(x), y)
            with amp.scale_loss(loss_one, one) as scaled:
                scaled.backward()
            with amp.scale_loss(loss_two, two) as scaled:
                scaled.backward()
            amp.step(one)
            amp.step(two)

        step = amp.compile(step) if compile_it else step
        before = [net.get_weights() for net in (first, second)]
        step(*batch())
        step(*batch())
        after = [net.get_weights() for net in (first, second)]
        assert amp.applied_steps == 4
        assert all((a != b).any() for a, b in zip(before[0] + before[1], after[0] + after[1], strict=True))


def test_an_embedding_has_rows_for_gradients():
    def make():
        return keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Dense(1)])

    for window in (1, 2):
        amp, model, optimizer = prepared(make=make, loss_scale=SCALE, accumulate_steps=window)
        before = model.get_weights()[0]
        for rows in ([[1, 2, 2]], [[1, 5, 5]]):
            amp.backward(lambda rows=rows, model=model: tf.reduce_sum(model(tf.constant(rows))), optimizer)
            amp.clip_grad_norm(optimizer, 1.0)
            amp.step(optimizer)
        moved = np.flatnonzero((model.get_weights()[0] != before).any(1))
        assert moved.tolist() == [1, 2, 5]


def test_evaluation_in_regions_does_not_pile_up():
    from unifiedamp_tensorflow.precision.tapes import KEPT_REGIONS

    amp, model, optimizer = prepared("float32")
    x, y = batch()
    for _ in range(3 * KEPT_REGIONS):
        with amp.autocast():
            mean_square(model(x), y)
        assert amp.backend.precision.tapes.current.regions <= KEPT_REGIONS
    amp.backward(lambda: mean_square(model(x), y), optimizer)
    amp.step(optimizer)
    assert amp.backend.precision.tapes.current is None


def test_import_of_the_plugin_imports_no_tensorflow():
    import subprocess
    import sys

    code = "import sys, unifiedamp_tensorflow.plugin; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]


class Scaled(tf.Module):
    """A step that is an object with variables, not a function."""

    def __init__(self, model):
        super().__init__()
        self.model, self.factor = model, tf.Variable(2.0)

    def __call__(self, x):
        return self.factor * self.model(x)


def test_a_module_is_compiled_as_its_call():
    amp, model, _ = prepared("float32")
    module = Scaled(model)
    call = amp.compile(module)
    x, _ = batch(4)
    for factor in (2.0, -1.0):
        module.factor.assign(factor)
        np.testing.assert_allclose(call(x), factor * model(x).numpy(), rtol=1e-5)


@pytest.mark.parametrize("place", ["loop", "branch", "function"])
def test_micro_batches_in_what_is_traced_once_are_refused(place):
    """Each run would be the first of its window, and no step would ever come."""
    amp, model, optimizer = prepared("float32", accumulate_steps=2)

    def micro_step(x, y):
        amp.backward(lambda: mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    @amp.compile
    def step(x, y):
        if place == "loop":
            for rows, targets in tf.data.Dataset.from_tensors((x, y)).repeat(4):
                micro_step(rows, targets)
        elif place == "branch":
            tf.cond(x[0, 0] > 0, lambda: micro_step(x, y), lambda: None)
        else:
            tf.function(micro_step)(x, y)

    with pytest.raises(ua.StepOrderError, match="Python's range"):
        step(*batch())

    @amp.compile
    def unrolled(x, y):
        for _ in range(4):
            micro_step(x, y)

    unrolled(*batch())
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("scale", [SCALE, "none"], ids=["scaled", "averaged"])
def test_scales_and_averages_in_a_loop_over_a_dataset_are_refused(scale):
    """TensorFlow does not wait for all that an iteration does: weights came out wrong at times."""
    amp, model, optimizer = prepared("float32", loss_scale=scale)
    if scale == "none":
        amp.ema(model, 0.5)

    @amp.compile
    def step(dataset):
        for rows, targets in dataset:
            amp.backward(lambda: mean_square(model(rows), targets), optimizer)  # noqa: B023
            amp.step(optimizer)

    with pytest.raises(ua.UnsupportedError, match="loop over the dataset outside"):
        step(tf.data.Dataset.from_tensors(batch()).repeat(2))


def test_gradients_of_a_tape_in_a_loop_over_a_dataset_are_refused():
    _, model, optimizer = prepared("float32", loss_scale=SCALE)

    @tf.function
    def train(dataset):
        for rows, targets in dataset:
            with tf.GradientTape() as tape:
                loss = keras_scaled(optimizer, mean_square(model(rows), targets))
            grads = keras_unscaled(optimizer, tape.gradient(loss, model.trainable_variables))
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    with pytest.raises(ua.UnsupportedError, match="apply_gradients: .*loop over the dataset outside"):
        train(tf.data.Dataset.from_tensors(batch()).repeat(2))
