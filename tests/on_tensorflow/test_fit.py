"""``model.fit`` with the prepared optimizer: our trajectory inside Keras's own loop."""

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import keras, mlp, prepared  # noqa: E402

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2, min_scale=2.0, max_scale=8.0)
FORMS = [{"run_eagerly": True}, {}, {"jit_compile": True}]


def fitted(rows_bad, policy, form, scale=SCALE):
    """Fit one batch at a time; a bad batch holds an inf."""
    amp, model, optimizer = prepared(policy, loss_scale=scale)
    model.compile(optimizer=optimizer, loss="mse", **form)
    x, y = np.ones((8, 4), np.float32), np.zeros((8, 2), np.float32)
    states = []
    for bad in rows_bad:
        model.fit(np.where(bad, np.inf, x).astype(np.float32), y, batch_size=8, verbose=0)
        states.append(amp.backend.training.read_state())
    return amp, model, optimizer, states


@pytest.mark.parametrize("form", FORMS, ids=["eager", "graph", "xla"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
def test_the_reference_transition(policy, form):
    bad = [False, False, False, False, True, True, True, False]
    amp, model, optimizer, states = fitted(bad, policy, form)
    expected = SCALE.initial_state()
    for found_inf, state in zip(bad, states, strict=True):
        expected = SCALE.next_state(expected, found_inf)
        assert (state.scale, state.good_steps, state.bad_steps) == (
            expected.scale, expected.good_steps, expected.bad_steps,
        )  # fmt: skip
    assert (amp.applied_steps, amp.skipped_steps) == (5, 3)
    assert int(optimizer.iterations.numpy()) == 5
    assert model.optimizer is optimizer
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_the_weights_are_those_of_plain_keras():
    _, model, _, _ = fitted([], "float32", {})
    plain = mlp()
    plain.set_weights(model.get_weights())
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = x[:, :2] * 2
    for net in (model, plain):
        net.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
def test_a_saved_model_loads_into_plain_keras(tmp_path):
    amp, model, _, _ = fitted([False] * 3, "mixed_float16", {}, ua.DynamicLossScale(initial_scale=512.0))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is keras.Sequential
    assert type(loaded.optimizer).__module__.startswith("keras")
    assert loaded.get_layer("hidden").compute_dtype == "float16"
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(loaded(x).numpy().astype(np.float32), model(x).numpy())
    loaded.fit(x, np.zeros((2, 2)), verbose=0)
    assert amp.applied_steps == 3


def test_fit_and_a_loop_share_one_scale():
    amp, model, optimizer, _ = fitted([False, False], "mixed_bfloat16", {})
    assert amp.loss_scale == 8.0
    amp.backward(lambda: tf.reduce_mean(model(tf.ones((2, 4)))), optimizer)
    result = amp.step(optimizer)
    assert (result.applied, result.scale) == (True, 8.0)
    assert amp.applied_steps == 3


def test_without_a_scale_the_optimizer_stays_the_users():
    amp = ua.Amp("tensorflow", "mixed_bfloat16")
    with amp.scope():
        model, optimizer = mlp(), keras.optimizers.SGD(0.1)
    _, same = amp.prepare(model, optimizer)
    assert same is optimizer
    model.compile(optimizer=same, loss="mse")
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    assert model.optimizer is optimizer
    assert amp.applied_steps == 1


def test_the_prepared_optimizer_is_a_keras_optimizer():
    _, _, optimizer = prepared(loss_scale=4.0)
    assert isinstance(optimizer, keras.optimizers.Optimizer)
    optimizer.learning_rate = 0.5
    assert float(np.asarray(optimizer.inner_optimizer.learning_rate)) == 0.5
