"""float8 on TensorFlow: which Keras layers, regions, fit, and what is refused."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance import float8 as oracle

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, keras, prepared  # noqa: E402

EMULATE = {"tensorflow": {"emulate": True}}


def float8(make, policy="mixed_float8", **options):
    return prepared(policy, make, backend_options=EMULATE, **options)


def rows(amp):
    return {row.setting[7:]: (row.value, row.note) for row in amp.explain() if row.setting.startswith("float8.")}


def inputs(*shape):
    x = oracle.BFLOAT16.round(np.clip(np.random.default_rng(0).normal(size=shape), -3.5, 3.5))
    x.flat[0] = 3.5
    return x.astype(np.float32)


def test_einsum_dense_layers():
    """A projection into four heads of eight is a product with 32 outputs."""

    def make():
        layer = keras.layers.EinsumDense("abc,cde->abde", (None, 4, 8), bias_axes="de", name="heads")
        return keras.Sequential([keras.Input((None, 48)), layer])

    amp, model, _ = float8(make)
    assert rows(amp) == {"heads": ("float8", "")}
    x = inputs(2, 8, 48)
    with amp.inference(model):
        out = model(tf.constant(x)).numpy()
    kernel, bias = model.get_layer("heads").get_weights()
    wanted = oracle.forward(x.reshape(16, 48), kernel.reshape(48, 32), bias.reshape(32))
    np.testing.assert_allclose(out.reshape(16, 32), wanted, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("recipe", ["rowwise", "block128", "mxfp8", "nvfp4"])
def test_einsums_are_scaled_as_dense_layers_of_their_sizes(recipe):
    """Two summed and two new dimensions, and an ellipsis: blocks lie along both as if they were one."""

    def einsum():
        layer = keras.layers.EinsumDense("...xy,xyde->...de", (8, 16), name="layer")
        return keras.Sequential([keras.Input((3, 4, 32)), layer])

    def plain():
        return keras.Sequential([keras.Input((3, 128)), keras.layers.Dense(128, use_bias=False, name="layer")])

    x = inputs(2, 3, 4, 32) * np.exp2(-np.arange(32.0) % 7).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(128, 128)).astype(np.float32)
    found = []
    for make, shape in ((einsum, (3, 4, 32)), (plain, (3, 128))):
        amp, model, optimizer = float8(make, f"mixed_float8;recipe={recipe};emulate=true")
        model.set_weights([kernel.reshape(model.get_weights()[0].shape)])
        given = tf.constant(x.reshape(2, *shape))
        amp.backward(lambda: tf.reduce_sum(model(given) ** 3), optimizer)  # noqa: B023
        (gradient,) = amp.gradients(optimizer).values()
        found.append((model(given).numpy().reshape(6, 128), gradient.numpy().reshape(128, 128)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("loss_scale", "xla"), [(None, False), ("dynamic", False), ("dynamic", True)])
def test_fit_ends_iterations_of_delayed_scaling(loss_scale, xla):
    policy = "mixed_float8;recipe=delayed;amax_history=6;emulate=true"
    amp, model, optimizer = float8(dense, policy, lr=0.0, loss_scale=loss_scale)
    x = inputs(64, 48) * np.repeat([1, 2, 4, 8], 16).astype(np.float32)[:, None]
    model.compile(optimizer, "mse", jit_compile=xla)
    for _ in range(2):
        model.fit(x, x[:, :32], batch_size=16, shuffle=False, verbose=0)
    (history,) = amp.backend.amax_history.read().values()
    largest = np.abs(x).reshape(4, -1).max(1)[::-1]
    np.testing.assert_array_equal(history[0], [*largest, *largest[:2]])
    assert (history[1] == np.abs(model.get_layer("dense").get_weights()[0]).max()).all()


class Twins(keras.Model):
    """Two layers of one name."""

    def __init__(self):
        super().__init__()
        self.twins = [keras.layers.Dense(16, name="twin", use_bias=False) for _ in range(2)]

    def call(self, x):
        return self.twins[1](self.twins[0](x))


def twins():
    model = Twins()
    model(tf.zeros((1, 16)))
    return model


def test_layers_of_one_name_have_an_amax_history_each():
    amp, model, optimizer = float8(twins, "mixed_float8;recipe=delayed;emulate=true")
    model.set_weights([np.full((16, 16), value, np.float32) for value in (0.5, 4.0)])
    amp.backward(lambda: tf.reduce_mean(model(tf.constant(inputs(16, 16)))), optimizer)
    amp.step(optimizer)
    histories = amp.backend.amax_history.read()
    assert {name: history[1].tolist() for name, history in histories.items()} == {"twin": [0.5], "twin_2": [4.0]}
    assert rows(amp) == {"twin": ("float8", ""), "twin_2": ("float8", "")}


def test_a_region_of_another_recipe_is_refused():
    amp, _, _ = float8(dense)
    with pytest.raises(ua.UnsupportedError, match="made ready for recipe 'tensorwise'"):
        amp.autocast(policy="mixed_nvfp4;emulate=true")


def test_the_sizes_of_an_einsum_are_products():
    def make():
        layers = [
            keras.layers.EinsumDense("abc,cde->abde", (None, 3, 8), name="odd_outputs"),
            keras.layers.EinsumDense("abde,dec->abc", (None, 32), name="odd_inputs"),
        ]
        return keras.Sequential([keras.Input((None, 48)), *layers, keras.layers.Dense(16, name="dense")])

    amp, _, _ = float8(make)
    assert rows(amp) == {
        "odd_outputs": ("not float8", "outputs=24: not a multiple of 16"),
        "odd_inputs": ("not float8", "inputs=24: not a multiple of 16"),
        "dense": ("float8", ""),
    }


class Doubled(keras.layers.Dense):
    def call(self, x):
        return super().call(x) * 2


def test_layers_with_ways_of_their_own_are_left_alone():
    def make():
        layers = [Doubled(32, name="own"), keras.layers.Dense(32, dtype="float32", name="wide")]
        return keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(16, name="good")])

    amp, model, _ = float8(make)
    assert rows(amp) == {
        "own": ("not float8", "Doubled overrides call"),
        "wide": ("not float8", "its dtype policy is 'float32'"),
        "good": ("float8", ""),
    }
    classes = [type(layer) for layer in model.layers]
    amp.close()
    assert [type(layer) for layer in model.layers] != classes
    assert type(model.get_layer("good")) is keras.layers.Dense


def dense():
    return keras.Sequential([keras.Input((48,)), keras.layers.Dense(32, name="dense")])


def test_a_region_of_bfloat16_leaves_float8():
    amp, model, _ = float8(dense)
    model.set_weights([np.random.default_rng(1).normal(0, 0.2, (48, 32)), np.zeros(32)])
    x = tf.constant(inputs(16, 48))
    low = model(x).numpy()
    with amp.autocast(policy="mixed_bfloat16"):
        mixed = model(x).numpy()
    with amp.autocast(enabled=False):
        plain = model(x).numpy()
    with amp.autocast():
        np.testing.assert_array_equal(model(x).numpy(), low)
    assert 0 < np.abs(mixed - plain).max() < 0.2 * np.abs(low - plain).max()
    other, _, _ = prepared("mixed_bfloat16", dense)
    with pytest.raises(ua.UnsupportedError, match="a policy for the session"):
        other.autocast(policy="mixed_float8")


@pytest.mark.parametrize("loss_scale", [None, "dynamic"])
def test_fit_trains_in_float8(loss_scale):
    amp, model, optimizer = float8(dense, lr=0.5, loss_scale=loss_scale)
    x = inputs(64, 48)
    y = np.tanh(x[:, :32])
    model.compile(optimizer, "mse", jit_compile=False)
    history = model.fit(x, y, epochs=12, batch_size=16, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    kernel, bias = model.get_layer("dense").get_weights()
    wanted = oracle.forward(x, kernel, np.asarray(oracle.BFLOAT16.round(bias)))
    np.testing.assert_allclose(model(tf.constant(x)).numpy(), wanted, atol=0.05)
    assert amp.loss_scale == (1.0 if loss_scale is None else 65536.0)


@pytest.mark.skipif(not SCALES_LOSS, reason="Keras 2 quantizes nothing to float8")
def test_a_model_that_keras_quantized_is_refused():
    amp = ua.Amp("tensorflow", "mixed_bfloat16")
    with amp.scope():
        model = dense()
        model.get_layer("dense").quantize("float8")
    with pytest.raises(ua.PrepareError, match=r"'dense' was quantized by Keras \(float8_from_mixed_bfloat16\)"):
        amp.prepare(model, keras.optimizers.SGD(0.1))


def test_what_is_refused_and_warned_of():
    with pytest.raises(ua.PolicyNotSupportedError, match="graph rewrite has no float8"):
        ua.Amp("tensorflow", "mixed_float8", backend_options={"tensorflow": {"mode": "graph_rewrite", "emulate": True}})
    with pytest.raises(ua.ConfigError, match=r"tensorflow\.emulate must be true or false, got 1"):
        ua.Amp("tensorflow", "mixed_float8", backend_options={"tensorflow": {"emulate": 1}})
    with pytest.warns(ua.errors.PolicyWarning, match="emulate has no effect under policy 'float32'"):
        ua.Amp("tensorflow", "float32", backend_options=EMULATE)
    with pytest.warns(ua.errors.PolicyWarning, match="runs no layer in float8: out: outputs=2: not a multiple"):
        float8(lambda: keras.Sequential([keras.Input((16,)), keras.layers.Dense(2, name="out")]))
