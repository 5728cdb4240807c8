"""Bfloat16 parameters on MXNet: the bits of the reference, and what is refused, with the evidence for it."""

import numpy as np
import pytest
from products import START, feed, prepared, product, trainer_of

import unifiedamp as ua
from unifiedamp.backend import rounding
from unifiedamp_mxnet.mxnet_api import BFLOAT16, NUMPY_API, from_numpy, mx

one_only = pytest.mark.skipif(NUMPY_API, reason="MXNet 2 has no gradients in bfloat16")
GRADIENTS = np.random.default_rng(0).integers(-8, 9, (6, len(START))).astype(np.float32) / 8


def run(policy, kind="sgd"):
    return prepared(kind, policy=policy, lr=2.0**-6, master_weights=False, loss_scale="none")


@one_only
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("update", ["stochastic", "kahan"])
def test_bits_of_the_reference(update, compiled):
    amp, model, trainer = run(f"bfloat16;update={update}")
    values, rest = rounding.nearest(np.float32(START)), np.float32(0)
    for step, gradient in enumerate(GRADIENTS):
        feed(amp, model, trainer, gradient, compiled)
        wide = values + rest - np.float32(2.0**-6) * gradient
        if update == "kahan":
            values, rest = rounding.kahan_split(wide)
        else:
            values = rounding.stochastic(wide, rounding.param_key("w"), rounding.step_key(0, step))
        np.testing.assert_array_equal(amp.master_weights(model)["w"], values + rest)
        np.testing.assert_array_equal(amp.to_numpy(model.w.data()), values)
    assert amp.explain().row("update").value == update


@one_only
def test_a_parameter_that_is_written_to_has_no_compensation():
    amp, model, trainer = run("bfloat16;update=kahan")
    feed(amp, model, trainer, GRADIENTS[0])
    assert (amp.master_weights(model)["w"] != amp.to_numpy(model.w.data())).any()
    model.w.set_data(from_numpy(np.float32([1.0, 1.0, 2.0, 3.0]), mx.cpu()))
    np.testing.assert_array_equal(amp.master_weights(model)["w"], [1.0, 1.0, 2.0, 3.0])


@one_only
def test_several_contexts_are_refused():
    amp = ua.Amp("mxnet", "bfloat16;update=kahan")
    model = product(contexts=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ua.PrepareError, match="on one context"):
        amp.prepare(model, trainer_of(model, "sgd"))


@pytest.mark.skipif(not NUMPY_API, reason="MXNet 1.9 has them")
def test_mxnet_2_makes_no_gradients_in_bfloat16():
    """The evidence behind the refusal. A CPU without AVX512 is refused before."""
    with pytest.raises(ua.PolicyNotSupportedError, match="MXNet 2 makes no gradients|no AVX512"):
        ua.Amp("mxnet", "bfloat16;update=kahan")
    model = product()
    with pytest.raises(mx.base.MXNetError, match="void16"):
        model.w.cast(BFLOAT16)


def test_saved_states_are_float32_arrays_that_a_native_trainer_loads(tmp_path):
    path = str(tmp_path / "states")
    amp, model, trainer = run("float32;state_dtype=float8", "adam")
    for gradient in GRADIENTS:
        feed(amp, model, trainer, gradient)
    (wanted,) = amp.backend.optimizer_states.read()
    trainer.save_states(path)
    other, model, native = run("float32", "adam")
    native.load_states(path)
    first, second = (each.asnumpy() for each in native._updaters[0].states[0])
    np.testing.assert_array_equal(first, wanted["w/first_moment"])
    np.testing.assert_array_equal(second, wanted["w/second_moment"])
    feed(other, model, native, GRADIENTS[0])
    with pytest.raises(ua.PrepareError, match="moments of this NAG are not known; use one of mxnet.optimizer's SGD"):
        run("float32;state_dtype=bfloat16", "nag")
