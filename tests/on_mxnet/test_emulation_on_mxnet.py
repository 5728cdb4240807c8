"""Emulated bfloat16 and float8 on MXNet: the bits of the reference, forward and backward, in graphs too."""

import functools

import numpy as np
import pytest
from trainers import sgd

import unifiedamp as ua
from unifiedamp.conformance.driver import session
from unifiedamp.conformance.emulated import take_ran
from unifiedamp.conformance.harness import load_harness
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to
from unifiedamp_mxnet.device.numpy_semantics import numpy_semantics
from unifiedamp_mxnet.mxnet_api import NUMPY_API, cast, from_numpy, gluon, mx
from unifiedamp_mxnet.precision import policies
from unifiedamp_mxnet.precision.rounding import rounded

FORMATS = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
BFLOAT16 = "mixed_bfloat16;emulate=true"
FLOAT8 = "mixed_float8;emulate=true"


def patterns():
    """All bfloat16 and float16 numbers, neighbours of ties, and random bits of float32."""
    every = np.arange(2**16, dtype=np.uint16)
    wide = every.astype(np.uint32) << 16
    near = np.concatenate([wide + step for step in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    random = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32).view(np.float32)
    return np.concatenate([near, random, every.view(np.float16).astype(np.float32)])


def bits(array):
    """Bits of float32; one nan is as good as another."""
    return np.where(np.isnan(array), np.uint32(0x7FC00000), np.asarray(array, np.float32).view(np.uint32))


def expected(values, name):
    """The casts of ml_dtypes where it is installed, and of the reference, which tests/core compares with it."""
    try:
        import ml_dtypes
    except ImportError:
        return round_to(values, FLOAT_FORMATS[name])
    with np.errstate(all="ignore"):
        return values.astype(np.float16 if name == "float16" else getattr(ml_dtypes, name)).astype(np.float32)


class Rounds(gluon.HybridBlock):
    def __init__(self, name):
        super().__init__()
        self.round = lambda x: cast(cast(x, "float16"), "float32") if name == "float16" else rounded(x, name)

    if NUMPY_API:

        def forward(self, x):
            return self.round(x)

    else:

        def hybrid_forward(self, F, x):
            return self.round(x)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_bits_forward_and_backward(name, hybrid):
    """What the operand of an emulated product becomes, and its gradient; float16 is cast by MXNet itself."""
    values = patterns()
    with numpy_semantics():
        block = Rounds(name)
        if hybrid:
            block.hybridize(static_alloc=True, static_shape=True)
        x = from_numpy(values, mx.cpu())
        x.attach_grad()
        with mx.autograd.record():
            out = block(x)
        out.backward(from_numpy(values, mx.cpu()))
        np.testing.assert_array_equal(bits(out.asnumpy()), bits(expected(values, name)))
        np.testing.assert_array_equal(bits(x.grad.asnumpy()), bits(expected(values, name)))


def losses(policy, make, x, hybrid, steps=3):
    amp = ua.Amp("mxnet", policy)
    with amp.scope():
        model = make()
    model, trainer = amp.prepare(model, sgd(model))

    def train(x):
        loss = amp.backward(lambda: (model(x) ** 2).mean(), trainer)
        amp.step(trainer)
        return loss

    step = amp.compile(train) if hybrid else train
    found = [float(np.ravel(amp.to_numpy(step(amp.to_native(x))))[0]) for _ in range(steps)]
    with amp.inference():
        outputs = [amp.to_numpy(model(amp.to_native(x))) for _ in range(5)]
    for each in outputs[1:]:
        np.testing.assert_array_equal(each, outputs[0])
    return found


def images():
    """Convolutions, whose arrays oneDNN lays out in its own way, and shapes that the first batch decides."""
    mx.random.seed(0)
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Conv2D(16, 3), gluon.nn.Conv2D(16, 3, groups=4), gluon.nn.BatchNorm(), gluon.nn.Dense(32))
    model.initialize(mx.init.Xavier())
    return model


def sequences(kind):
    """A recurrent layer, whose first states are zeros of a shape that the first batch decides."""
    mx.random.seed(0)
    model = gluon.nn.HybridSequential()
    model.add(getattr(gluon.rnn, kind)(16, input_size=8), gluon.nn.Dense(32, in_units=10 * 16))
    model.initialize(mx.init.Uniform(0.3))
    return model


MODELS = {"images": (images, (16, 8, 9, 9))}
MODELS |= {kind: (functools.partial(sequences, kind), (16, 10, 8)) for kind in ("LSTM", "GRU", "RNN")}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "policy", [BFLOAT16, FLOAT8, FLOAT8.replace(";", ";recipe=delayed;"), FLOAT8.replace("float8", "mxfp8")]
)
def test_graphs_train_as_eager_steps_do(policy, model):
    make, shape = MODELS[model]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    eager, hybrid = (losses(policy, make, x, hybrid) for hybrid in (False, True))
    plain = losses("float32", make, x, False)
    assert hybrid == pytest.approx(eager, rel=1e-5)
    assert eager == pytest.approx(plain, rel=0.2)
    assert abs(eager[0] - plain[0]) > 1e-6


LAYERS = {
    "transposed convolution": (lambda: [gluon.nn.Conv2DTranspose(8, 3, in_channels=8)], (4, 8, 6, 6)),
    "strides, groups": (lambda: [gluon.nn.Conv2DTranspose(8, 3, 2, 1, 1, groups=2, in_channels=8)], (4, 8, 6, 6)),
    "prelu": (lambda: [gluon.nn.Dense(32, in_units=64), gluon.nn.PReLU()], (4, 64)),
}


@pytest.mark.filterwarnings("ignore:amp.compile. MXNet computes a wrong gradient for PReLU:unifiedamp.PolicyWarning")
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("policy", [BFLOAT16, "mixed_float16;emulate=true;loss_scale=8.0"])
def test_layers_that_mxnet_itself_runs_in_one_dtype(policy, layer, hybrid):
    """Its own lists give ``PReLU`` inputs of two dtypes; its transposed convolutions take no weight but a parameter."""
    layers, shape = LAYERS[layer]

    def make():
        mx.random.seed(0)
        model = gluon.nn.HybridSequential()
        model.add(*layers())
        model.initialize(mx.init.Uniform(0.3))
        return model

    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found, plain = losses(policy, make, x, hybrid), losses("float32", make, x, False)
    assert found == pytest.approx(plain, rel=0.02)
    assert found != plain


def test_it_computes_as_the_native_bfloat16(net):
    """Both round at the same places; they add up in another order, so that a few results are neighbours."""
    if not ua.available_backends()["mxnet"].dtypes["mixed_bfloat16"].ok:
        pytest.skip("bfloat16 does not run on this CPU")
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    native, emulated, plain = (losses(policy, net, x, True) for policy in ("mixed_bfloat16", BFLOAT16, "float32"))
    assert emulated == pytest.approx(native, rel=2.0**-8)
    assert emulated != plain


def test_layers_in_other_dtypes_are_emulated_too(net):
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    kept = {
        dtype: losses(f"{BFLOAT16};layers=*:{dtype}", net, x, False) for dtype in ("float16", "bfloat16", "float32")
    }
    assert kept["bfloat16"] == losses(BFLOAT16, net, x, False)
    assert kept["float32"] == losses("float32", net, x, False)
    assert abs(kept["float16"][0] - kept["float32"][0]) < abs(kept["bfloat16"][0] - kept["float32"][0])


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        ("p=bfloat16,c=float16,o=float32;emulate=true", "'mixed_float16;emulate=true' is the nearest"),
        ("p=float16,c=bfloat16,o=float32;emulate=true", "'mixed_bfloat16;emulate=true' is the nearest"),
        ("p=float32,c=bfloat16,o=float16;emulate=true", "output_dtype='float32'"),
        ("mixed_float8", "'mixed_float8;emulate=true' runs its numerics"),
    ],
)
def test_what_cannot_be_emulated_is_refused(policy, match):
    with pytest.raises(ua.PolicyNotSupportedError, match=match):
        ua.Amp("mxnet", policy)


def test_the_kit_emulates_what_this_machine_does_not_run(monkeypatch):
    monkeypatch.setattr(policies, "cpu_runs_bfloat16", lambda: False)
    for name in ("mixed_float16", "mixed_bfloat16", "mixed_float8", "bfloat16"):
        assert session(load_harness("mxnet"), policy=name).policy == ua.Policy.parse(f"{name};emulate=true")
    assert take_ran() == ["mixed_float16", "mixed_bfloat16", "mixed_float8", "bfloat16"]
    for options in ({"policy": "float16"}, {"policy": "bfloat16", "master_weights": True}):
        with pytest.raises(ua.PolicyNotSupportedError):
            session(load_harness("mxnet"), **options)
    assert take_ran() == []


def test_a_product_outside_layers_has_no_history():
    """A function's operands, larger than those of the layer that ran before it, do not enter the layer's history."""
    amp = ua.Amp("mxnet", "mixed_float8;recipe=delayed;emulate=true")
    with amp.scope():
        net = gluon.nn.Dense(16, in_units=16, use_bias=False)
        net.initialize(mx.init.Constant(0.125))
        trainer = sgd(net, 0.0)
    net, trainer = amp.prepare(net, trainer)
    x, weight = amp.to_native(np.full((16, 16), 0.5, np.float32)), amp.to_native(np.full((16, 16), 64, np.float32))
    product = mx.npx.fully_connected if NUMPY_API else mx.nd.FullyConnected
    amp.backward(lambda: product(net(x), weight, no_bias=True, num_hidden=16).mean(), trainer)
    amp.step(trainer)
    (history,) = amp.backend.amax_history.read().values()
    assert history[:2].tolist() == [[0.5], [0.125]]
