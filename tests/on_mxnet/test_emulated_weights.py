"""Parameters of the emulated ``bfloat16`` on MXNet: bit for bit the numbers of a reference that rounds, on any CPU."""

import itertools

import numpy as np
import pytest
from products import START, prepared, product, trainer_of

import unifiedamp as ua
from unifiedamp.backend import rounding
from unifiedamp_mxnet.mxnet_api import dtype_name, from_numpy, gluon, mx
from unifiedamp_mxnet.precision import policies

GRADIENTS = np.random.default_rng(0).normal(0, 0.5, (6, len(START))).astype(np.float32)
RATE, MOMENTUM = np.float32(2.0**-3), np.float32(0.5)
FACTOR = np.float32(149 / 128)
"""Of the loss: a bfloat16 number, whose product with another one is none."""
FORMS = pytest.mark.parametrize("compiled", [False, True])


def low(values):
    """The nearest bfloat16; the casts of ml_dtypes where it is installed."""
    try:
        import ml_dtypes
    except ImportError:
        return rounding.nearest(np.asarray(values, np.float32))
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def feed(amp, model, trainer, values, compiled=False):
    def step(x):
        amp.backward(lambda: model(x) * float(FACTOR), trainer)
        return amp.step(trainer)

    return (amp.compile(step) if compiled else step)(amp.to_native(np.asarray(values, np.float32)))


def gradient_of(values):
    """The gradient of the weight: the batch is rounded, and so is its product with the gradient of the output."""
    return low(low(values) * FACTOR)


def run(policy, kind="sgd", **options):
    return prepared(kind, policy=f"{policy};emulate=true", lr=float(RATE), master_weights=False, loss_scale="none",
                    **options)  # fmt: skip


@pytest.fixture(autouse=True)
def cpu_without_bfloat16(monkeypatch):
    monkeypatch.setattr(policies, "cpu_runs_bfloat16", lambda: False)


@FORMS
@pytest.mark.parametrize("update", [None, "stochastic", "kahan"])
def test_bits_of_the_reference(update, compiled):
    """Batch and gradient are rounded, the update is made in float32, and the weight is rounded once."""
    amp, model, trainer = run("bfloat16" if update is None else f"bfloat16;update={update}")
    values, rest = low(START), np.float32(0)
    assert np.array_equal(amp.to_numpy(model.w.data()), values)
    for step, gradient in enumerate(GRADIENTS):
        feed(amp, model, trainer, gradient, compiled)
        wide = values + rest - RATE * gradient_of(gradient)
        if update == "kahan":
            values = low(wide)
            rest = low(wide - values)
        elif update == "stochastic":
            values = rounding.stochastic(wide, rounding.param_key("w"), rounding.step_key(0, step))
        else:
            values = low(wide)
        np.testing.assert_array_equal(amp.master_weights(model)["w"], values + rest)
        np.testing.assert_array_equal(amp.to_numpy(model.w.data()), values)
    assert dtype_name(model.w.data()) == "float32"
    row = amp.explain().row("param_dtype")
    assert (row.value, row.effect) == ("bfloat16", "emulated")


def test_moments_are_rounded_as_the_parameters_are():
    amp, model = ua.Amp("mxnet", "bfloat16;emulate=true", device="cpu"), product()
    settings = {"learning_rate": float(RATE), "momentum": float(MOMENTUM)}
    model, trainer = amp.prepare(model, gluon.Trainer(model.collect_params(), "sgd", settings))
    values, velocity = low(START), np.float32(0)
    for gradient in GRADIENTS:
        feed(amp, model, trainer, gradient)
        velocity = MOMENTUM * velocity - RATE * gradient_of(gradient)
        values, velocity = low(values + velocity), low(velocity)
        np.testing.assert_array_equal(amp.to_numpy(model.w.data()), values)
        np.testing.assert_array_equal(trainer._updaters[0].states[0].asnumpy(), velocity)


@FORMS
def test_gradients_of_a_window_are_rounded_one_by_one_and_added_in_float32(compiled):
    amp, model, trainer = run("bfloat16;update=kahan", accumulate_steps=2)
    for gradient in GRADIENTS[:2]:
        feed(amp, model, trainer, gradient, compiled)
    total = sum(gradient_of(gradient) / np.float32(2) for gradient in GRADIENTS[:2])
    wide = low(START) - RATE * total
    np.testing.assert_array_equal(amp.to_numpy(model.w.data()), low(wide))
    np.testing.assert_array_equal(amp.master_weights(model)["w"], low(wide) + low(wide - low(wide)))


@FORMS
def test_products_of_a_network(compiled):
    """Against float64 sums between roundings: each activation, and the weights after a step."""
    rng = np.random.default_rng(1)
    layers = [(rng.normal(size=(o, i)), rng.normal(size=o)) for i, o in itertools.pairwise((6, 8, 3))]
    x = rng.normal(size=(4, 6)).astype(np.float32)
    amp = ua.Amp("mxnet", "bfloat16;emulate=true", device="cpu")
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, in_units=6, activation="relu"), gluon.nn.Dense(3, in_units=8))
    net.initialize()
    for layer, (weight, bias) in zip((net[0], net[1]), layers, strict=True):
        for param, values in ((layer.weight, weight), (layer.bias, bias)):
            param.set_data(from_numpy(np.float32(values), mx.cpu()))
    net, _ = amp.prepare(net, trainer_of(net, "sgd", 0.1))
    call = amp.compile(lambda batch: net(batch)) if compiled else net
    with amp.inference(net), amp.autocast():
        found = amp.to_numpy(call(from_numpy(x, mx.cpu())))
    hidden = low(x)
    for place, (weight, bias) in enumerate(layers):
        hidden = np.float64(low(np.maximum(hidden, 0) if place else hidden))
        hidden = low(hidden @ np.float64(low(weight)).T + np.float64(low(bias)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, low(found))
    np.testing.assert_allclose(found, hidden, rtol=2.0**-7)
    assert (found == hidden).mean() > 0.8  # sums in another order round to neighbours here and there


def test_a_layer_that_stays_float32_is_not_rounded():
    amp, net = ua.Amp("mxnet", "bfloat16;emulate=true;layers=1:float32", device="cpu"), gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=4), gluon.nn.Dense(4, in_units=4))
    net.initialize(mx.init.Uniform(1.0))
    amp.prepare(net, trainer_of(net, "sgd", 0.1))
    first, second = (amp.to_numpy(layer.weight.data()) for layer in (net[0], net[1]))
    assert np.array_equal(first, low(first))
    assert (second != low(second)).any()


def test_master_weights_are_refused_by_name():
    with pytest.raises(ua.PolicyNotSupportedError, match="'mixed_bfloat16;emulate=true' rounds float32 parameters"):
        ua.Amp("mxnet", "bfloat16;emulate=true", device="cpu", master_weights=True)


def test_several_contexts_are_refused():
    amp, model = ua.Amp("mxnet", "bfloat16;emulate=true", device="cpu"), product(contexts=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ua.PrepareError, match="on one context"):
        amp.prepare(model, trainer_of(model, "sgd"))
