"""mxnet.amp's spellings, MXNet 1 and 2: the write-ups' own lines train, overflow skips, everything can be taken back.

float16 runs on GPUs only, and bfloat16 on CPUs with AVX512: elsewhere those cases are skipped by the declared reason.
"""

import numpy as np
import pytest
from old_code import falls, listing

import unifiedamp as ua
from unifiedamp.compat import mxnet as amp
from unifiedamp_mxnet.mxnet_api import (
    NUMPY_API,
    NDArray,
    autograd,
    dtype_name,
    from_numpy,
    gluon,
    invoke_native,
    mx,
    nd_register,
)
from unifiedamp_mxnet.precision.casts import current

LISTINGS = ["mxnet2_amp"] if NUMPY_API else ["mxnet_amp", "mxnet_amp_devices"]
INF = float("inf")


@pytest.fixture(autouse=True)
def taken_back():
    yield
    amp.close()
    assert nd_register._imperative_invoke is invoke_native
    assert current.table is None


def run(name, dtype, steps):
    moved = ("from mxnet.contrib import amp", "from unifiedamp.compat import mxnet as amp")
    if NUMPY_API:
        moved = (
            "from mxnet import amp, autograd",
            "from unifiedamp.compat import mxnet as amp\nfrom mxnet import autograd",
        )
    return listing(name, moved, ("amp.init()", f"amp.init(target_dtype={dtype!r})"))["train"](steps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LISTINGS)
def test_the_listings_lines_train(name, dtype):
    assert falls(run(name, dtype, 24))


@pytest.mark.parametrize("name", LISTINGS)
def test_the_listing_loses_what_the_same_loop_without_amp_loses(name):
    """A power of two scales float32 exactly, so up to the order of summation nothing changes."""
    scaled = run(name, "float32", 6)
    plain = [
        ("from mxnet.contrib import amp", ""),
        ("amp.init()", ""),
        ("amp.init_trainer(trainer)", ""),
        ("with amp.scale_loss(loss, trainer) as scaled_loss:", "if True:"),
        ("autograd.backward(scaled_loss)", "autograd.backward(loss)"),
    ]
    if NUMPY_API:
        plain[0] = ("from mxnet import amp, autograd", "from mxnet import autograd")
    if "devices" in name:
        plain.append(("amp.unscale(trainer)", ""))
    assert scaled == pytest.approx(listing(name, *plain)["train"](6), rel=1e-5)


class Weight(gluon.Block):
    """One weight; its loss is the weight times what it is called with."""

    def __init__(self):
        super().__init__()
        name = "weight"
        self.w = gluon.Parameter(name, shape=(1,), init="ones")
        if not NUMPY_API:
            self._reg_params = {name: self.w}
        self.w.initialize()

    def forward(self, x):
        return self.w.data() * x


def array(values):
    return from_numpy(np.asarray(values, np.float32), mx.cpu())


def trainer_of(model, **settings):
    params = [model.w] if NUMPY_API else gluon.ParameterDict()
    if not NUMPY_API:
        params._params[model.w.name] = model.w
    return gluon.Trainer(params if not NUMPY_API else {"w": model.w}, "sgd", {"learning_rate": 0.1, **settings})


SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)


def begun(settings=None, **options):
    """A model and its trainer, after ``init`` and ``init_trainer``."""
    amp.init("float32")
    model = Weight()
    trainer = trainer_of(model, **(settings or {}))
    amp.init_trainer(trainer, **options)
    return model, trainer


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("several", [False, True])
def test_overflow_skips_and_the_scale_moves_as_the_reference(clip, several):
    gradients = [1.0, 0.25, INF, 1.0, float("nan"), -INF, 1.0, 1.0, 1.0]
    model, trainer = begun({"rescale_grad": 0.5}, loss_scale=SCALE)
    state, weight = SCALE.initial_state(), 1.0
    for gradient in gradients:
        with autograd.record():
            loss = model(array([gradient, gradient]))
            with amp.scale_loss([loss] if several else loss, trainer) as scaled:
                first = scaled[0] if several else scaled
                assert first.shape == (2,)
                assert np.allclose(first.asnumpy(), loss.asnumpy() * state.scale, equal_nan=True)
                autograd.backward(scaled)
        if clip:
            amp.unscale(trainer)
            amp.unscale(trainer)
            grad = model.w.grad()
            grad[:] = grad.clip(-clip, clip)
        trainer.step(2)
        finite = abs(gradient) < INF
        if finite:  # The gradients of both rows add up; Trainer divides by the batch and multiplies by rescale_grad.
            weight -= 0.1 * min(2 * gradient, clip or INF) * 0.5 / 2
        state = SCALE.next_state(state, not finite)
        assert trainer._amp_loss_scaler.loss_scale == state.scale
        assert float(model.w.data().asnumpy()[0]) == pytest.approx(weight, rel=1e-6)


def test_a_loss_scaled_outside_record_is_differentiated():
    model, trainer = begun()
    with autograd.record():
        loss = model(array([3.0]))
    with amp.scale_loss(loss, trainer) as scaled:
        scaled.backward()
    trainer.step(1)
    assert float(model.w.data().asnumpy()[0]) == pytest.approx(0.7)


def test_a_loss_in_float16_is_scaled_in_float32():
    """Times 65536, float16 has not even 1."""
    model, trainer = begun()
    with autograd.record():
        loss = model(array([3.0])).astype("float16")
        with amp.scale_loss(loss, trainer) as scaled:
            scale = trainer._amp_loss_scaler.loss_scale
    assert dtype_name(scaled) == "float32"
    assert scaled.asnumpy().tolist() == [3 * scale]


def test_a_hopeless_run_stops():
    model, trainer = begun()
    with pytest.raises(ua.LossScaleExhausted):
        for _ in range(60):
            with autograd.record(), amp.scale_loss(model(array([INF])), trainer) as scaled:
                scaled.backward()
            trainer.step(1)


def test_calls_that_came_too_early_are_refused():
    model = Weight()
    trainer = trainer_of(model)
    with pytest.raises(ua.StepOrderError, match=r"amp\.init\(\)"):
        amp.init_trainer(trainer)
    for call in (amp.unscale, lambda trainer: amp.scale_loss(array([1.0]), trainer)):
        with pytest.raises(ua.WrongObjectError, match=r"amp\.init_trainer\(trainer\)"):
            call(trainer)
    amp.init("float32")
    with pytest.raises(ua.WrongObjectError, match=r"gluon\.Trainer"):
        amp.init_trainer(mx.optimizer.SGD())


def test_dtypes_that_cannot_run_are_refused_by_name():
    with pytest.raises(ua.PolicyNotSupportedError, match="no float16 matrix product on CPU"):
        amp.init()
    with pytest.raises(ua.ConfigError, match="float64"):
        amp.init("float64")
    with pytest.raises(ua.ConfigError, match="no operator 'Convolutoin'"):
        amp.init("float32", target_precision_ops=["Convolutoin"])


def dense(x):
    model = gluon.nn.Dense(4, in_units=8)
    model.initialize()
    return model(x)


def test_init_casts_outside_regions_and_again_changes_it():
    x = array(np.ones((2, 8)))
    amp.init("bfloat16")
    assert dtype_name(dense(x)) == "bfloat16"
    amp.init("bfloat16", target_precision_ops=["Convolution"], fp32_ops=["FullyConnected"])
    assert dtype_name(dense(x)) == "float32"
    amp.close()
    assert dtype_name(dense(x)) == "float32"


def test_lists_take_the_place_of_mxnets():
    """The lists' effect on the rules, which are plain data on any CPU."""
    from unifiedamp_mxnet.mxnet_api import op_handle
    from unifiedamp_mxnet.precision.operations import COMPUTE, FLOAT32, ByAttribute, build_rules, replace_lists

    rules, _ = build_rules(ua.Policy.parse("mixed_float16"), False)
    assert rules[op_handle("Convolution")] == COMPUTE
    changed = replace_lists(rules, ["softmax"], ["Convolution"], [("Activation", "act_type", ["tanh"])])
    assert changed[op_handle("softmax")] == COMPUTE
    assert changed[op_handle("Convolution")] == FLOAT32
    assert op_handle("FullyConnected") not in changed
    assert op_handle("exp") not in changed
    assert changed[op_handle("Activation")] == ByAttribute("act_type", {"tanh": FLOAT32})
    assert replace_lists(rules, None, None, None) == rules


def test_a_block_is_converted_for_inference():
    x = array(np.ones((2, 8)))
    block = gluon.nn.HybridSequential()
    block.add(gluon.nn.Dense(4, in_units=8))
    block.initialize()
    converted = amp.convert_hybrid_block(block, target_dtype="bfloat16", data=x)
    assert isinstance(converted(x), NDArray)
    assert np.allclose(converted(x).asnumpy(), block(x).asnumpy(), rtol=0.02, atol=0.02)


def test_what_has_no_counterpart_is_refused():
    block = gluon.nn.HybridSequential()
    with pytest.raises(ua.UnsupportedError, match="excluded_sym_names"):
        amp.convert_hybrid_block(block, excluded_sym_names=["fc"])
    with pytest.raises(ua.ConfigError, match="data="):
        amp.convert_hybrid_block(block)
    with pytest.raises(ua.UnsupportedError, match="convert_hybrid_block"):
        amp.convert_model(None, {}, {})
