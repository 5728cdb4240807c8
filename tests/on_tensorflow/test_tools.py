"""Arrays in and out, custom operations, capabilities and the plan."""

import copy
import pickle

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import batch, mean_square, prepared  # noqa: E402


def test_arrays():
    amp, _, _ = prepared()
    tensor = tf.constant([1.0])
    assert amp.to_native(tensor) is tensor
    assert amp.to_native(np.arange(3)).dtype == tf.int64
    assert amp.to_numpy(tf.constant(1.5, tf.bfloat16)) == 1.5
    back = amp.to_numpy(tf.constant([1.5], tf.bfloat16))
    assert (back.dtype, back.tolist()) == (np.float32, [1.5])
    np.testing.assert_array_equal(amp.to_numpy(tf.Variable([2.0])), [2.0])


def unpickled(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [unpickled, copy.deepcopy])
def test_a_prepared_model_is_copied_as_a_keras_model(copied):
    amp, model, optimizer = prepared()
    x, y = batch()
    amp.backward(lambda: mean_square(model(x), y), optimizer)
    amp.step(optimizer)
    other = copied(model)
    assert type(other) is type(model).__mro__[1]
    for mine, its in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    amp.backward(lambda: mean_square(model(x), y), optimizer)
    assert amp.step(optimizer).applied


def test_memory_that_ran_out_under_xla():
    """XLA raises a class that TensorFlow does not export; its message starts with the status."""
    amp, _, _ = prepared()
    told = [
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
        RuntimeError("INVALID_ARGUMENT"),
    ]
    assert [amp.backend.device.out_of_memory(error) for error in told] == [True, False]


def test_dlpack_from_another_framework():
    pytest.importorskip("torch.nn", exc_type=ImportError)
    import torch

    amp, _, _ = prepared()
    source = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    np.testing.assert_array_equal(amp.to_native(source).numpy(), source.numpy())


def test_a_custom_operation_casts_its_inputs_in_regions():
    amp, _, _ = prepared()
    seen = []

    @ua.amp_function(cast_inputs="float16")
    @tf.custom_gradient
    def square(x, count):
        seen.append((x.dtype.name, count.dtype.name))
        return x * x, lambda upstream: (2 * x * upstream, None)

    x, count = tf.constant([3.0]), tf.constant(1)
    square(x, count)
    with amp.autocast():
        assert square(x, count).dtype == tf.float16
        with amp.autocast(enabled=False):
            assert square(x, count).dtype == tf.float32
    assert seen == [("float32", "int32"), ("float16", "int32"), ("float32", "int32")]
    with pytest.raises(ua.UnsupportedError, match="decorate a function"):
        ua.amp_function(type("Op", (tf.Module,), {}))


def test_capabilities_give_reasons():
    amp, _, _ = prepared()
    answers = amp.capabilities
    assert all(support.reason for support in answers.features.values() if not support)
    assert answers.policies["mixed_bfloat16"]
    assert answers.policies["mixed_float16"]
    assert answers.feature("several_devices")


def test_the_plan_says_what_runs():
    policy = ua.Policy.parse("mixed_bfloat16").replace(layer_overrides={"out": "float32"})
    amp, _, _ = prepared(
        policy, loss_scale="dynamic", backend_options={"tensorflow": {"xla": True}}, accumulate_steps=2
    )
    plan = amp.explain()
    assert "set_global_policy('mixed_bfloat16')" in plan.row("mode").native
    assert "jit_compile=True" in plan.row("compile").native
    assert "output_gradients=scale" in plan.row("scaler").native
    assert plan.row("accumulate_steps").effect == "emulated"
    assert plan.row("layer_overrides.out").value == "float32"


@pytest.mark.parametrize(("device", "match"), [("gpu:7", "sees no such device"), ("tpu", "sees no such device")])
def test_a_device_that_is_not_there(device, match):
    with pytest.raises(ua.ConfigError, match=match):
        ua.Amp("tensorflow", "float32", device=device)


def test_options_of_the_wrong_type():
    with pytest.raises(ua.ConfigError, match="true or false"):
        ua.Amp("tensorflow", "float32", backend_options={"tensorflow": {"xla": "yes"}})


def test_a_loss_that_is_no_tensor():
    amp, model, optimizer = prepared()
    for loss in (1.0, np.float32(1.0), tf.constant(1), tf.Variable(1.0)):
        with amp.autocast():
            model(batch()[0])
        with pytest.raises(ua.LossError, match="floating-point TensorFlow tensor"):
            amp.scale_loss(loss, optimizer)


def test_a_loss_that_was_computed_outside():
    amp, model, optimizer = prepared(loss_scale=4.0)
    with amp.autocast():
        output = model(batch()[0])
    loss = tf.reduce_mean(output * 2.0)
    with pytest.raises(ua.LossError, match="inside the region"), amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()


def test_scaled_value_is_float32_and_divided():
    amp, model, optimizer = prepared("bfloat16", accumulate_steps=4)
    with amp.autocast():
        loss = tf.reduce_mean(model(batch()[0]))
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled.value.dtype == tf.float32
        assert float(scaled.value) == pytest.approx(float(loss) / 4, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        (np.float64, None, "float32"),
        (np.float32, None, "float32"),
        (np.float16, None, "float16"),
        (np.int64, None, "int64"),
        (np.float64, "float64", "float64"),
        (np.float32, "bfloat16", "bfloat16"),
    ],
)
def test_batches_come_out_in_float32_unless_asked(given, dtype, expected):
    device = ua.Amp("tensorflow", "float32").backend.device
    array = np.array([1.0, 2.5, -3.0]).astype(given)
    native = device.to_native(array, dtype)
    assert native.dtype.name == expected
    np.testing.assert_array_equal(tf.cast(native, tf.float64), array)


def test_native_tensors_come_back_as_they_are():
    device = ua.Amp("tensorflow", "float32").backend.device
    tensor = tf.constant([1.0], tf.float64)
    assert device.to_native(tensor) is tensor
    assert device.to_native(tensor, "float32").dtype == tf.float32
    assert device.to_native([1.0, 2.0]).dtype == tf.float32
