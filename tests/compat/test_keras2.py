"""Keras 2's and TensorFlow 1's spellings, on Keras 2 and 3: the write-ups' own lines train, overflow skips."""

import numpy as np
import pytest
import tensorflow as tf
from old_code import falls, listing

import unifiedamp as ua
from unifiedamp.compat import keras2
from unifiedamp.compat.keras2 import experimental

keras = tf.keras
INF = float("inf")
IMPORT = "import tensorflow as tf\n"
OURS = IMPORT + "from unifiedamp.compat import keras2\n"


def process_state():
    return (
        keras.mixed_precision.global_policy().name,
        tf.config.optimizer.get_experimental_options(),
        keras.Model.compile,
    )


@pytest.fixture(autouse=True)
def taken_back():
    before = process_state()
    yield
    keras2.disable_mixed_precision_graph_rewrite()
    experimental.set_policy("float32")
    assert process_state() == before


def loop(*replacements):
    moved = ("from tensorflow.keras import mixed_precision", "from unifiedamp.compat import keras2 as mixed_precision")
    return listing("keras2_loop", moved, *replacements)["train"]


def test_a_custom_loop_trains_compiled_and_eager():
    compiled = loop()(12)
    assert falls(compiled)
    assert loop(("    @tf.function\n", ""))(3) == pytest.approx(compiled[:3], rel=0.01)


def test_a_custom_loop_loses_what_float32_loses():
    # float16 rounds to 11 bits; the softmax and the loss are float32.
    assert loop(('"mixed_float16"', '"float32"'))(6) == pytest.approx(loop()(6), rel=0.02)


def test_experimental_policies_train_by_fit():
    moved = ("from tensorflow.keras.mixed_precision import", "from unifiedamp.compat.keras2 import")
    assert falls(listing("keras2_experimental", moved)["train"](12))


def test_the_graph_rewrite_trains_by_fit():
    train = listing("tf_rewrite", (IMPORT, OURS), ("tf.train.experimental.enable", "keras2.enable"))["train"]
    assert falls(train(20))


def test_the_graph_rewrite_trains_in_a_session():
    moved = ("tf.compat.v1.mixed_precision.enable", "keras2.enable")
    train = listing("tf_rewrite_v1", (IMPORT, OURS), moved)["train"]
    with pytest.warns(ua.PolicyWarning, match=r"config=unifiedamp\.compat\.keras2\.session_config"):
        assert falls(train(24))
    keras2.disable_mixed_precision_graph_rewrite()
    told = listing(
        "tf_rewrite_v1", (IMPORT, OURS), moved, ("v1.Session()", "v1.Session(config=keras2.session_config())")
    )
    with pytest.warns(ua.PolicyWarning):
        assert falls(told["train"](24))


def test_a_sessions_graph_gets_one_loss_scale():
    with tf.Graph().as_default() as graph:
        plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        with pytest.warns(ua.PolicyWarning):
            keras2.enable_mixed_precision_graph_rewrite(plain, loss_scale=8.0)
        names = [variable.name for variable in graph.get_collection("variables")]
    assert sum("scale" in name for name in names) == 1, names


# -- the scale ---------------------------------------------------------------------------------------------------

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
GRADIENTS = [1.0, 0.25, INF, 1.0, float("nan"), -INF, 1.0, 1.0, 1.0]


def wanted(clip=None):
    """What the reference does to a weight of 1 and to the scale."""
    state, weight, seen = SCALE.initial_state(), 1.0, []
    for gradient in GRADIENTS:
        finite = abs(gradient) < INF
        if finite:
            weight -= 0.1 * min(gradient, clip or INF)
        state = SCALE.next_state(state, not finite)
        seen.append((pytest.approx(weight, rel=1e-6), state.scale))
    return seen


def by_hand(optimizer, weight, clip):
    def step(x):
        with tf.GradientTape() as tape:
            scaled = optimizer.get_scaled_loss(tf.reduce_sum(weight * x))
        gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, [weight]))
        if clip:
            gradients = [tf.clip_by_value(gradient, -clip, clip) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    return step


def by_minimize(optimizer, weight, clip):
    return lambda x: optimizer.minimize(lambda: tf.reduce_sum(weight * x), [weight])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("make", "clip"), [(by_hand, None), (by_hand, 0.5), (by_minimize, None)])
def test_overflow_skips_and_the_scale_moves_as_the_reference(make, clip, compiled):
    weight = tf.Variable([1.0])
    optimizer = keras2.LossScaleOptimizer(keras.optimizers.SGD(0.1), SCALE)
    step = make(optimizer, weight, clip)
    step = tf.function(step) if compiled else step
    seen = []
    for gradient in GRADIENTS:
        step(tf.constant([gradient]))
        seen.append((float(weight.numpy()[0]), float(optimizer.loss_scale)))
    assert seen == wanted(clip)
    assert int(optimizer.iterations.numpy()) == sum(abs(gradient) < INF for gradient in GRADIENTS)


class Times(keras.layers.Layer):
    """One weight, times the input."""

    def build(self, _shape):
        self.w = self.add_weight(shape=(1,), initializer="ones", name="w")

    def call(self, x):
        return x * self.w


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_skips_and_moves_the_scale_too(eagerly):
    model = keras.Sequential([keras.Input((1,)), Times()])
    optimizer = experimental.LossScaleOptimizer(keras.optimizers.SGD(0.1), SCALE)
    model.compile(optimizer, loss=lambda _, y: tf.reduce_sum(y), run_eagerly=eagerly)
    seen = []
    for gradient in GRADIENTS:
        model.fit(np.full((1, 1), gradient, np.float32), np.zeros((1, 1), np.float32), verbose=0)
        seen.append((float(model.get_weights()[0][0]), float(optimizer.loss_scale)))
    assert seen == wanted()


def test_a_hopeless_eager_run_stops():
    weight = tf.Variable([1.0])
    step = by_hand(keras2.LossScaleOptimizer(keras.optimizers.SGD(0.1)), weight, None)
    with pytest.raises(ua.LossScaleExhausted):
        for _ in range(60):
            step(tf.constant([INF]))


# -- what people ask of it ---------------------------------------------------------------------------------------


def test_it_is_kerass_own_and_says_its_settings():
    optimizer = keras2.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0, dynamic_growth_steps=7)
    assert isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    assert optimizer.dynamic
    assert float(optimizer.loss_scale) == 4.0
    assert optimizer._amp_scaler.settings.growth_interval == 7
    assert float(keras2.LossScaleOptimizer(keras.optimizers.SGD()).loss_scale) == 2.0**15
    fixed = keras2.LossScaleOptimizer(keras.optimizers.SGD(), dynamic=False, initial_scale=128)
    assert not fixed.dynamic
    half = tf.constant(3.0, tf.float16)
    assert fixed.get_scaled_loss(half).numpy() == fixed.get_scaled_loss(lambda: half)().numpy() == 384.0
    assert fixed.get_unscaled_gradients([tf.constant([256.0]), None]) == [tf.constant([2.0]), None]


@pytest.mark.parametrize("steps_before", [0, 1])
def test_gradients_that_were_not_unscaled_are_refused(steps_before):
    weight = tf.Variable([1.0])
    optimizer = keras2.LossScaleOptimizer(keras.optimizers.SGD(0.1))

    def gradients():
        with tf.GradientTape() as tape:
            scaled = optimizer.get_scaled_loss(tf.reduce_sum(weight))
        return tape.gradient(scaled, [weight])

    for _ in range(steps_before):
        optimizer.apply_gradients(zip(optimizer.get_unscaled_gradients(gradients()), [weight], strict=True))
    before = weight.numpy()
    with pytest.raises(ua.StepOrderError, match="get_unscaled_gradients"):
        optimizer.apply_gradients(zip(gradients(), [weight], strict=True))
    assert weight.numpy() == before


def test_wrong_arguments_are_refused():
    with pytest.raises(ua.WrongObjectError, match="Keras optimizers"):
        keras2.LossScaleOptimizer("sgd")
    with pytest.raises(ua.PrepareError, match="scales the loss already"):
        keras2.LossScaleOptimizer(keras2.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ua.ConfigError, match="needs initial_scale"):
        keras2.LossScaleOptimizer(keras.optimizers.SGD(), dynamic=False)
    with pytest.raises(ua.StepOrderError, match="enable_mixed_precision_graph_rewrite"):
        keras2.session_config()


def test_policies_carry_a_loss_scale():
    assert experimental.Policy("mixed_float16").loss_scale == "dynamic"
    assert experimental.Policy("default_mixed").name == "mixed_float16"
    assert experimental.Policy("float32").loss_scale is None
    policy = experimental.Policy("mixed_float16", loss_scale=experimental.FixedLossScale(128))
    experimental.set_policy(policy)
    assert experimental.global_policy() is policy
    assert keras.mixed_precision.global_policy().compute_dtype == "float16"
    model = keras.Sequential([keras.Input((1,)), Times()])
    model.compile("sgd", loss="mse")
    assert float(model.optimizer.loss_scale) == 128.0
    experimental.set_policy("mixed_bfloat16")
    model = keras.Sequential([keras.Input((1,)), Times()])
    model.compile("sgd", loss="mse")
    assert not isinstance(model.optimizer, keras.mixed_precision.LossScaleOptimizer)


def test_the_rewrite_is_on_until_it_is_disabled():
    before = tf.config.optimizer.get_experimental_options()
    optimizer = keras2.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD(), loss_scale=128.0)
    assert float(optimizer.loss_scale) == 128.0
    assert tf.config.optimizer.get_experimental_options() != before
    keras2.disable_mixed_precision_graph_rewrite()
    assert tf.config.optimizer.get_experimental_options() == before
    keras2.set_global_policy("mixed_float16")
    with pytest.raises(ua.PrepareError, match="'mixed_float16' is active"):
        keras2.enable_mixed_precision_graph_rewrite(keras.optimizers.SGD())
