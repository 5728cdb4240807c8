"""``Policy.update`` on Keras 2 and 3: in ``fit``, against float32 masters and the reference's bits; what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from models import SCALES_LOSS

import unifiedamp as ua
from unifiedamp.backend import rounding, state_rounding
from unifiedamp_tensorflow.precision.layers import parameters
from unifiedamp_tensorflow.training import bfloat16_rounding, moment_rounding

keras = tf.keras
X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def prepared(update, optimizer, policy=None, **options):
    keras.utils.set_random_seed(0)
    policy = policy or ("bfloat16" if update is None else f"bfloat16;update={update}")
    amp = ua.Amp("tensorflow", policy, device="cpu", **options)
    with amp.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, name="a"), keras.layers.Dense(1, name="b")])
    return amp, *amp.prepare(model, optimizer)


def fitted(update, **options):
    adamw = keras.optimizers.AdamW(1e-3, weight_decay=0.1)
    amp, model, optimizer = prepared(update, adamw, **options)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(X, Y, batch_size=16, epochs=4, shuffle=False, verbose=0)
    return amp, model, optimizer


def weights(amp, model):
    return np.concatenate([value.ravel() for value in amp.master_weights(model).values()])


def test_fit_follows_float32_masters():
    """Weight decay and moments too. A compensation leaves out less than 2**-17 of a weight below 1 in a step."""
    exact = weights(*fitted(None, master_weights=True)[:2])
    assert np.abs(weights(*fitted("kahan")[:2]) - exact).max() < 16 * 2.0**-16
    assert np.abs(weights(*fitted(None)[:2]) - exact).max() > 2.0**-9
    errors = weights(*fitted("stochastic")[:2]) - exact
    assert abs(errors.mean()) < 2.0**-10


def test_random_bits_are_the_references():
    amp, model, optimizer = prepared("stochastic", keras.optimizers.SGD(2.0**-10))
    before = {name: variable.numpy().astype(np.float32) for name, variable in parameters([model]).items()}

    @amp.compile
    def train(x):
        amp.backward(lambda: tf.reduce_sum(tf.cast(model(x), tf.float32)), optimizer)
        gradients = {name: tf.cast(value, tf.float32) for name, value in amp.gradients(optimizer).items()}
        amp.step(optimizer)
        return gradients

    for step in range(2):
        gradients = train(tf.constant(X))
        for name, variable in parameters([model]).items():
            value = before[name] - np.float32(2.0**-10) * gradients[name].numpy()
            expected = rounding.stochastic(value, rounding.param_key(name), rounding.step_key(0, step))
            before[name] = variable.numpy().astype(np.float32)
            np.testing.assert_array_equal(before[name], expected)


def test_keras_checkpoints_hold_compensations(tmp_path):
    amp, model, optimizer = fitted("kahan")
    saved = amp.state_dict()["update"]
    assert max(np.abs(rest).max() for rest in amp.backend.weight_updates.read().values()) > 0
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "saved"))
    fresh, model, optimizer = prepared("kahan", keras.optimizers.AdamW(1e-3, weight_decay=0.1))
    assert fresh.state_dict()["update"]["steps"] == [0]
    tf.train.Checkpoint(model=model, optimizer=optimizer).read(path)
    assert fresh.state_dict()["update"] == saved
    assert saved["steps"] == [16]


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 loads no bfloat16 weights from such files")
def test_weight_files_hold_compensations(tmp_path):
    amp, model, _ = fitted("kahan")
    saved = amp.state_dict()["update"]
    model.save_weights(str(tmp_path / "m.weights.h5"))
    fresh, model, optimizer = prepared("kahan", keras.optimizers.AdamW(1e-3, weight_decay=0.1))
    model.compile(optimizer=optimizer, loss="mse")
    model.load_weights(str(tmp_path / "m.weights.h5"))
    assert fresh.state_dict()["update"] == saved
    assert saved["steps"] == [16]


def test_weights_assigned_to_drop_their_compensation():
    amp, model, _ = fitted("kahan")
    small = 2.0**-20
    model.set_weights([np.full(value.shape, small) for value in model.get_weights()])
    assert np.abs(weights(amp, model) - small).max() <= small * 2.0**-9


def test_native_updates_are_refused_after_a_step_too():
    amp, model, optimizer = prepared("kahan", keras.optimizers.SGD(0.1))
    pairs = [(tf.zeros_like(each), each) for each in model.trainable_variables]
    for _ in range(2):
        with pytest.raises(ua.StepOrderError, match="the session rounds the update"):
            optimizer.inner_optimizer.apply_gradients(pairs)
        amp.backward(
            lambda: sum(tf.reduce_sum(tf.cast(each, tf.float32)) for each in model.trainable_variables), optimizer
        )
        assert amp.step(optimizer).applied


def test_what_is_refused():
    built = keras.optimizers.SGD(0.1)
    built.build([tf.Variable(1.0)])
    with pytest.raises(ua.PrepareError, match=r"update= needs float32 slots; make a new one"):
        prepared("kahan", built)
    with pytest.raises(ua.PrepareError, match=r"SGD has use_ema=True.*use amp\.ema"):
        prepared("kahan", keras.optimizers.SGD(0.1, use_ema=True))

    class Decays(keras.optimizers.SGD):
        def _apply_weight_decay(self, variables):
            pass

    with pytest.raises(ua.PrepareError, match="Decays has an overridden _apply_weight_decay"):
        prepared("kahan", Decays(0.1))

    _, model, optimizer = prepared("kahan", keras.optimizers.SGD(0.1))
    pairs = [(tf.zeros_like(each), each) for each in model.trainable_variables]
    with pytest.raises(ua.StepOrderError, match="the session rounds the update"):
        optimizer.inner_optimizer.apply_gradients(pairs)


def test_an_optimizer_that_ignores_its_values_is_refused():
    class Ignores(keras.optimizers.SGD):
        def update_step(self, *_args):
            pass

    amp, model, optimizer = prepared("stochastic", Ignores(0.1))
    amp.backward(lambda: tf.reduce_sum(tf.cast(model(X), tf.float32)), optimizer)
    with pytest.raises(ua.UnsupportedError, match="Ignores did not update the float32 values"):
        amp.step(optimizer)


@pytest.mark.parametrize(("dtype", "apart"), [("bfloat16", 2e-3), ("float8", 8e-3)])
def test_state_dtype_in_fit(dtype, apart):
    """Moments are bfloat16 variables, or bytes: of float8 numbers, and of a scale for the one block of each."""
    narrow = f"float32;state_dtype={dtype}"
    runs = []
    for policy in (narrow, "float32"):
        amp, model, optimizer = prepared(None, keras.optimizers.Adam(1e-3), policy)
        model.compile(optimizer=optimizer, loss="mse")
        model.fit(X, Y, batch_size=16, epochs=4, shuffle=False, verbose=0)
        runs.append(weights(amp, model))
        if policy == narrow:
            kept = [each for each in optimizer.inner_optimizer.variables if len(each.shape)]
            assert {tf.as_dtype(each.dtype).name for each in kept} == {{"float8": "uint8"}.get(dtype, dtype)}
            assert amp.state_dict()["states"]["steps"] == [16]
            numbers, blocks = len(runs[0]), len(model.trainable_variables)
            bytes_of = {"bfloat16": 2 * numbers, "float8": numbers + 4 * blocks}
            assert amp.backend.optimizer_states.nbytes() == 2 * bytes_of[dtype]
    assert 0 < np.abs(runs[0] - runs[1]).max() < apart


@pytest.mark.parametrize("update", ["kahan", "stochastic", None])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_closing_makes_moments_float32(dtype, update):
    """The same numbers, and the optimizer's own updates go on from them; of bfloat16 parameters too."""
    policy = "mixed_bfloat16" if update is None else f"bfloat16;update={update}"
    native = keras.optimizers.Adam(0.01)
    amp, model, optimizer = prepared(update, native, f"{policy};state_dtype={dtype}")
    x = tf.constant(X)
    for _ in range(3):
        amp.backward(lambda: tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32))), optimizer)
        amp.step(optimizer)
    kept = amp.backend.optimizer_states.read()[0]
    amp.close()
    moments = [each for each in native.variables if each.shape.rank == 2 or each.shape in ((16,), (1,))]
    found = {each.numpy().tobytes() for each in moments}
    assert len(kept) == 8
    assert {np.asarray(each, np.float32).tobytes() for each in kept.values()} <= found
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32)))
    if update is None:
        native.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )


def test_what_state_dtype_refuses():
    narrow = "float32;state_dtype=bfloat16"
    with pytest.raises(
        ua.PrepareError, match="moments of this Nadam are not known; use one of tf.keras.optimizers' Adam"
    ):
        prepared(None, keras.optimizers.Nadam(0.1), narrow)
    built = keras.optimizers.SGD(0.1, 0.9)
    built.build([tf.Variable(1.0)])
    with pytest.raises(ua.PrepareError, match="state_dtype= needs slots of fewer bits; make a new one"):
        prepared(None, built, narrow)


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_float8_moments_have_the_bits_of_the_reference(squares, compiled):
    """Blocks that are not full, zeros, subnormal numbers, inf and nan; twice, as what is kept stays."""
    rng = np.random.default_rng(0)
    key, seed = state_rounding.moment_key("a", "second_moment"), 3
    run = tf.function(
        lambda values, step: moment_rounding.pack(values, squares, key, bfloat16_rounding.step_key(seed, step)),
        jit_compile=compiled, autograph=False,
    )  # fmt: skip
    for shape in ((1,), (256,), (3, 100), (40, 50), (0,)):
        values = (rng.normal(size=shape) * np.exp2(rng.integers(-60, 30, shape))).astype(np.float32)
        values = values * values if squares else values
        values.ravel()[::7] = 0
        values.ravel()[50::90] = np.inf
        values.ravel()[70::99] = np.nan
        for step in range(2):
            codes, scales = state_rounding.pack(values, squares, key, rounding.step_key(seed, step))
            expected = state_rounding.unpack(codes, scales, squares, values.shape)
            kept = run(tf.constant(values), tf.constant(step))
            assert kept.numpy().tobytes() == codes.tobytes() + scales.astype("<f4").tobytes()
            found = moment_rounding.unpack(kept, squares, tf.TensorShape(shape)).numpy()
            np.testing.assert_array_equal(found, expected)
            values = np.nan_to_num(expected)


@pytest.mark.parametrize(
    "policy", ["bfloat16;update=kahan", "bfloat16;update=stochastic", "float32;state_dtype=bfloat16"]
)
def test_variables_excluded_from_weight_decay_do_not_decay(policy):
    """Gradients of zero: kernels decay by a quarter, biases stay."""
    sgd = keras.optimizers.SGD(0.5, weight_decay=0.5)
    sgd.exclude_from_weight_decay(var_names=["bias"])
    amp, model, optimizer = prepared(None, sgd, policy, loss_scale="none")
    amp.load_master_weights(model, {name: np.ones_like(value) for name, value in amp.master_weights(model).items()})
    for expected in (0.75, 0.5625):
        amp.backward(lambda: tf.reduce_sum(tf.cast(model(X), tf.float32)) * 0.0, optimizer)
        assert amp.step(optimizer).applied
        for name, value in amp.master_weights(model).items():
            assert set(value.ravel().tolist()) == {1.0 if "bias" in name else expected}, name
