"""Emulated 16-bit products on Keras 2 and 3: bits of the reference, steps beside native ones, what is refused."""

import numpy as np
import pytest
import tensorflow as tf

import unifiedamp as ua
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to as reference
from unifiedamp_tensorflow.internals import BIASES, PRODUCTS, RESHAPES
from unifiedamp_tensorflow.precision import emulation
from unifiedamp_tensorflow.precision.rounding import round_to, rounded

keras = tf.keras
layers = keras.layers


def values():
    wide = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([wide + step for step in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)


def bits(tensor):
    array = np.asarray(tensor)
    return np.where(np.isnan(array), np.uint32(0x7FC00000), array.view(np.uint32))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_bits_of_the_reference(name):
    given, form = values(), FLOAT_FORMATS[name]
    expected = bits(reference(given, form))
    compiled = tf.function(lambda x: round_to(x, form), jit_compile=True, autograph=False)
    for found in (round_to(tf.constant(given), form), compiled(tf.constant(given))):
        np.testing.assert_array_equal(bits(found), expected)


def test_the_gradient_is_rounded_too():
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = rounded(x, FLOAT_FORMATS["float16"])
    gradient = tape.gradient(y, x, output_gradients=tf.constant([1 + 2**-12, 1e6]))
    assert gradient.numpy().tolist() == [1.0, float("inf")]


def trained(text, form="eager", steps=3, tuning=None):
    keras.utils.set_random_seed(0)
    amp = ua.Amp("tensorflow", text, device="cpu", loss_scale="none", tuning=tuning)
    with amp.scope():
        model = keras.Sequential(
            [
                keras.Input((5, 8)),
                layers.Dense(16, activation="relu", name="a"),
                layers.Conv1D(8, 3, name="b"),
                layers.Flatten(name="c"),
                layers.Dense(4, name="d"),
            ]
        )
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(2.0**-5))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 5, 8)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)

    def train(x, y):
        amp.backward(lambda: tf.reduce_mean(tf.math.squared_difference(tf.cast(model(x), tf.float32), y)), optimizer)
        amp.step(optimizer)

    if form == "fit":
        model.compile(optimizer=optimizer, loss="mse")
        model.fit(np.tile(x, (steps, 1, 1)), np.tile(y, (steps, 1)), batch_size=8, shuffle=False, verbose=0)
    else:
        mode = {"compiled": "default", "xla": "max"}
        step = train if form == "eager" else amp.compile(train, mode=mode[form])
        for _ in range(steps):
            step(amp.to_native(x), amp.to_native(y))
    found = np.concatenate([value.ravel() for value in amp.master_weights(model).values()])
    amp.close()
    return found


@pytest.mark.parametrize(
    ("policy", "limit"),
    [("mixed_bfloat16", 2.0**-11), ("mixed_float16", 2.0**-14), ("bfloat16", 2.0**-6), ("float16", 2.0**-9)],
)
@pytest.mark.filterwarnings("ignore::unifiedamp.errors.NoGainWarning")
def test_emulated_steps_are_close_to_native_ones(policy, limit):
    """Both round operands and gradients at the same places; a native bias is added to a rounded result."""
    single, native, emulated = (trained(text) for text in ("float32", policy, f"{policy};emulate=true"))
    assert 0 < np.abs(native - emulated).max() < limit
    assert np.abs(emulated - single).max() > 0


@pytest.mark.parametrize("form", ["compiled", "xla", "fit"])
def test_emulated_steps_are_those_of_eager(form):
    policy = "mixed_float16;emulate=true"
    assert np.abs(trained(policy, form) - trained(policy)).max() < 2.0**-20


def test_recomputed_layers_are_emulated():
    policy = "mixed_bfloat16;emulate=true"
    np.testing.assert_array_equal(trained(policy, tuning=ua.Tuning(checkpoint_layers=("a",))), trained(policy))


def test_a_region_is_emulated_to_its_end():
    """Products after a model's call too: native float16 would round after each addition, or at the end alone."""
    amp = ua.Amp("tensorflow", "mixed_float16;emulate=true", device="cpu")
    with amp.scope():
        model = keras.Sequential([keras.Input((2,)), layers.Dense(2)])
    model = amp.prepare(model)
    a, b, bias = (
        tf.constant([[1.0, 2.0**-11]], tf.float16),
        tf.ones((2, 2), tf.float16),
        tf.fill((2,), tf.constant(2.0**-11, tf.float16)),
    )
    with amp.autocast():
        found = [tf.nn.bias_add(tf.matmul(a, b), bias).numpy().tolist()]
        model(tf.ones((1, 2)))
        found.append(tf.nn.bias_add(tf.matmul(a, b), bias).numpy().tolist())
    assert found == [[[1 + 2.0**-10] * 2]] * 2


def test_regions_leave_nothing_behind():
    amp = ua.Amp("tensorflow", "mixed_float16;emulate=true", device="cpu")
    places = (*PRODUCTS, *BIASES, *RESHAPES)
    before = [getattr(*place) for place in places]
    a, b = tf.constant([[1.0, 2.0**-11]], tf.float16), tf.constant([[1.0], [1.0]], tf.float16)
    with amp.autocast():
        assert [getattr(*place) for place in places] != before
        assert tf.matmul(a, b).dtype == tf.float16
        with pytest.raises(ZeroDivisionError), amp.autocast(enabled=False):
            raise ZeroDivisionError
    assert [getattr(*place) for place in places] == before


def test_the_plan_promises_no_speed_of_an_emulated_dtype():
    """The device's gain by a dtype is that of products it computes itself."""
    for policy, tells in (("mixed_bfloat16", True), ("mixed_bfloat16;emulate=true", False)):
        rows = ua.Amp("tensorflow", policy, loss_scale=8.0).explain()
        assert ("speed" in {row.setting for row in rows}) == tells


def test_what_cannot_be_emulated_is_refused():
    with pytest.raises(ua.PolicyNotSupportedError, match="use mode='keras'"):
        ua.Amp("tensorflow", "mixed_bfloat16;emulate=true", backend_options={"tensorflow": {"mode": "graph_rewrite"}})
    amp = ua.Amp("tensorflow", "mixed_bfloat16;emulate=true", device="cpu")
    assert amp.explain().row("emulate").effect == "emulated"
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    with pytest.raises(ua.PolicyNotSupportedError, match="without emulate"):
        amp.convert_model(model, policy="mixed_bfloat16;emulate=true")


def test_a_recurrent_kernel_of_a_gpu_is_refused():
    class OnGpu:
        is_cpu = False

    lstm = layers.LSTM(2, dtype="mixed_float16", name="lstm")
    with pytest.raises(ua.PrepareError, match="one kernel of cuDNN's"):
        emulation.check_layer("lstm", lstm, "LSTM", OnGpu())
