"""What ``Tuning`` does on TensorFlow: settings, layers computed again, datasets."""

import numpy as np
import pytest
import tensorflow as tf

import unifiedamp as ua
from unifiedamp.backend import Switches
from unifiedamp.errors import TuningWarning
from unifiedamp_tensorflow.device import tuning
from unifiedamp_tensorflow.precision import recomputation

keras = tf.keras
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


class Counting(keras.layers.Layer):
    """Counts how often its Python runs, and finds out whether it trains from Keras alone."""

    calls = 0

    def __init__(self, **names):
        super().__init__(**names)
        self.dense, self.norm = dense(8, "dense", 0), keras.layers.BatchNormalization(name="norm")
        self.drop = keras.layers.Dropout(0.5 if recomputation.REPLAYS_SEEDS else 0.0, seed=3, name="drop")

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build((None, 8))
        super().build(shape)

    def call(self, x):
        self.calls += 1
        return tf.nn.relu(self.drop(self.norm(self.dense(x))))


def net():
    return keras.Sequential([keras.Input((4,)), Counting(name="block"), dense(2, "last", 1)])


def dense(units, name, seed):
    return keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=seed), name=name)


def trained(items, mode=None, policy="float32", steps=3, options=None):
    amp = ua.Amp("tensorflow", policy, tuning=items, backend_options={"tensorflow": options or {}})
    with amp.scope():
        model = net()
    block = model.get_layer("block")
    block.calls = 0
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.1))

    def step(x):
        loss = amp.backward(lambda: tf.reduce_mean(model(x) ** 2), optimizer)
        amp.step(optimizer)
        return loss

    run = amp.compile(step, mode=mode) if mode else step
    losses = [float(run(amp.to_native(X))) for _ in range(steps)]
    amp.close()
    return losses, [weight.numpy() for weight in model.weights if "seed" not in weight.name], block


@pytest.mark.parametrize("mode", [None, "default", "max"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_layer_computes_again_what_it_computed(mode, policy):
    """With dropout and batch norm inside: losses, weights and running statistics are bitwise those of the plain one."""
    losses, weights, block = trained(None, mode, policy)
    again, others, block_again = trained({"checkpoint_layers": ["block"]}, mode, policy)
    assert again == losses
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)
    assert block_again.calls == 2 * block.calls


def test_under_the_graph_rewrite_too():
    options = {"mode": "graph_rewrite"}
    losses, weights, _ = trained(None, "default", options=options)
    again, others, _ = trained({"checkpoint_layers": ["block"]}, "default", options=options)
    assert again == losses
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_closing_gives_the_layer_back():
    _, _, block = trained({"checkpoint_layers": ["block"]})
    calls = block.calls
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(X, training=True))
    tape.gradient(loss, block.trainable_variables)
    assert block.calls == calls + 1
    assert type(block) is Counting


@pytest.mark.skipif(recomputation.REPLAYS_SEEDS, reason="Keras 3 draws the same numbers again")
def test_random_layers_are_refused_where_they_cannot_be_computed_again():
    amp = ua.Amp("tensorflow", "float32", tuning={"checkpoint_layers": ["drop"]})
    with amp.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(2)])
    with pytest.raises(ua.UnsupportedError, match="cannot be drawn again"):
        amp.prepare(model)


def test_layers_are_made_channels_last_in_the_scope():
    before = keras.backend.image_data_format()
    keras.backend.set_image_data_format("channels_first")
    try:
        amp = ua.Amp("tensorflow", "float32", tuning={"channels_last": True})
        with pytest.raises(KeyError), amp.scope():
            inside, error = keras.layers.Conv2D(4, 3), KeyError("inside")
            raise error
        assert inside.data_format == "channels_last"
        assert keras.backend.image_data_format() == "channels_first"
        with pytest.warns(TuningWarning, match="'outside' made with data_format='channels_first'"):
            amp.prepare(keras.Sequential([keras.Input((3, 8, 8)), keras.layers.Conv2D(4, 3, name="outside")]))
        assert amp.explain().row("tuning.channels_last").effect == "no effect"
    finally:
        keras.backend.set_image_data_format(before)


@pytest.mark.parametrize("mode", [None, "default"])
def test_tf32_holds_while_the_session_computes(monkeypatch, mode):
    """As on a GPU: the setting is TensorFlow's, and can be set without one."""
    enabled, seen = tf.config.experimental.tensor_float_32_execution_enabled, []
    monkeypatch.setattr(tuning, "Switches", lambda _: Switches([tuning.TF32]))
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        amp = ua.Amp("tensorflow", "float32", tuning={"tf32": True, "best_effort": True})
        with amp.scope():
            model = net()
        model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.1))

        @tf.custom_gradient
        def look(x):
            def gradient(dy):
                return tf.py_function(lambda d: (seen.append(enabled()), d)[1], [dy], tf.float32)

            return tf.py_function(lambda v: (seen.append(enabled()), v)[1], [x], tf.float32), gradient

        def step(x):
            loss = amp.backward(lambda: look(tf.reduce_mean(model(x) ** 2)), optimizer)
            amp.step(optimizer)
            return loss

        (amp.compile(step, mode=mode) if mode else step)(amp.to_native(X))
        assert seen == [True, True]
        assert not enabled()
        with pytest.raises(KeyError), amp.inference():
            assert enabled()
            raise KeyError("inside")
        assert not enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_fast_leaves_the_graph_rewrite_to_tf_function():
    losses, _, _ = trained("fast", "max", options={"mode": "graph_rewrite"})
    assert losses[-1] != losses[0]
    amp = ua.Amp("tensorflow", "float32", tuning="fast", backend_options={"tensorflow": {"mode": "graph_rewrite"}})
    row = amp.explain().row("tuning.compile")
    assert (row.effect, row.note) == (
        "no effect",
        "no effect here: mode='graph_rewrite' and XLA exclude each other",
    )


def test_a_dataset_is_prefetched_by_tensorflow():
    amp = ua.Amp("tensorflow", "float32")
    dataset = tf.data.Dataset.range(10).batch(4)
    ahead = amp.prefetch(dataset, 3)
    assert isinstance(ahead, tf.data.Dataset)
    assert [batch.numpy().tolist() for batch in ahead] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("on", "off", "name"),
    [
        (tf.debugging.enable_check_numerics, tf.debugging.disable_check_numerics, "enable_check_numerics"),
        (
            lambda: tf.config.run_functions_eagerly(True),
            lambda: tf.config.run_functions_eagerly(False),
            "run_functions_eagerly",
        ),
    ],
)
def test_switches_left_on_are_told(on, off, name):
    amp = ua.Amp("tensorflow", "float32", tuning={"set_to_none": True})
    with amp.scope():
        model = net()
    on()
    try:
        assert name in amp.explain().row("debugging").native
        with pytest.warns(TuningWarning, match=name):
            amp.prepare(model)
    finally:
        off()
    with pytest.raises(KeyError):
        amp.explain().row("debugging")


@pytest.mark.parametrize(("activation", "told"), [(None, True), ("linear", True), ("relu", False)])
def test_a_bias_inside_an_activation_is_not_what_a_batch_norm_subtracts(activation, told):
    amp = ua.Amp("tensorflow", "float32", tuning={"channels_last": True, "best_effort": True})
    with amp.scope():
        first = keras.layers.Dense(4, activation)
        model = keras.Sequential([keras.Input((4,)), first, keras.layers.BatchNormalization()])
    amp.prepare(model)
    assert ("tuning.bias_before_norm" in {row.setting for row in amp.explain()}) == told
