"""MXNet's own calls beside the session's, in the ways that only MXNet has."""

import numpy as np
import pytest
from products import PURE, START, product, session, trainer_of

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import autograd, from_numpy, gluon, mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
ONES = np.ones(4, np.float32)
SETTINGS = {"float32": {"policy": "float32", "master_weights": False}, "master weights": {"policy": PURE}}
KINDS = pytest.mark.parametrize("setting", SETTINGS)


def prepared(setting, contexts=None, **options):
    amp = session(**SETTINGS[setting], **options)
    model = product(contexts=contexts)
    return amp, *amp.prepare(model, trainer_of(model, "sgd", 0.125))


def loss_of(amp, model, ctx=CONTEXTS[0], value=1.0):
    with amp.autocast():
        return model(from_numpy(ONES * value, ctx))


def scaled_backward(amp, model, trainer, **options):
    with amp.scale_loss(loss_of(amp, model, **options), trainer) as scaled:
        scaled.backward()


@KINDS
@pytest.mark.parametrize("place", range(2))
def test_another_loss_on_one_of_two_contexts(setting, place):
    amp, model, trainer = prepared(setting, CONTEXTS)
    other = loss_of(amp, model, CONTEXTS[place])
    scaled_backward(amp, model, trainer)
    autograd.backward(other)
    with pytest.raises(ua.StepOrderError, match=r"backward\(\) ran on a loss that is not scaled.*amp.discard_step"):
        amp.step(trainer)
    amp.discard_step(trainer)
    scaled_backward(amp, model, trainer, ctx=CONTEXTS[1])
    assert amp.step(trainer).applied
    for ctx in CONTEXTS:
        np.testing.assert_allclose(model.w.data(ctx).asnumpy(), np.array(START) - 0.125, rtol=1e-3)


@KINDS
@pytest.mark.parametrize("call", ["unscale", "clip_grad_norm", "next backward", "step"])
def test_it_is_refused_by_the_next_call(setting, call):
    amp, model, trainer = prepared(setting, accumulate_steps=1)
    other, third = loss_of(amp, model), loss_of(amp, model)
    scaled_backward(amp, model, trainer)
    other.backward()
    calls = {
        "unscale": lambda: amp.unscale(trainer),
        "clip_grad_norm": lambda: amp.clip_grad_norm(trainer, 1.0),
        "next backward": lambda: amp.scale_loss(third, trainer),
        "step": lambda: amp.step(trainer),
    }
    with pytest.raises(ua.StepOrderError, match=r"call scaled_loss\.backward\(\) instead of loss\.backward\(\)"):
        calls[call]()
    np.testing.assert_array_equal(model.w.data().asnumpy(), np.array(START, model.w.data().dtype))


@pytest.mark.parametrize("call", ["step", "update", "allreduce_grads"])
@pytest.mark.parametrize("scaled", [True, False])
def test_each_call_of_the_trainer(call, scaled):
    amp, model, trainer = prepared("float32", CONTEXTS, loss_scale=8.0 if scaled else "none")
    scaled_backward(amp, model, trainer)
    with pytest.raises(ua.StepOrderError, match=rf"Trainer\.{call}\(\).*amp\.step\(trainer\).*amp\.discard_step"):
        getattr(trainer, call)(*([1] if call != "allreduce_grads" else []))
    assert amp.step(trainer).applied
    for ctx in CONTEXTS:
        np.testing.assert_allclose(model.w.data(ctx).asnumpy(), np.array(START) - 0.125, rtol=1e-6)


def test_a_native_pass_between_steps_is_nothing_to_the_session():
    """MXNet overwrites gradients: a pass that looks at saliency, say, needs no clean-up."""
    amp = session(**SETTINGS["float32"])
    model, unused = product(), product()
    trainer = gluon.Trainer([model.w, unused.w], "sgd", {"learning_rate": 0.125})
    amp.prepare(model, unused, trainer)
    for _ in range(2):
        with amp.autocast():
            loss = model(from_numpy(ONES * 9, CONTEXTS[0])) + unused(from_numpy(ONES, CONTEXTS[0]))
        loss.backward()
        scaled_backward(amp, model, trainer)
        assert amp.step(trainer).applied
    np.testing.assert_allclose(model.w.data().asnumpy(), np.array(START) - 0.25, rtol=1e-6)
    np.testing.assert_array_equal(unused.w.data().asnumpy(), np.array(START, np.float32))


def test_a_loop_written_with_mxnets_calls_alone_is_left_alone():
    amp, model, trainer = prepared("float32", loss_scale="none")
    for _ in range(2):
        with autograd.record():
            loss = model(from_numpy(ONES, CONTEXTS[0]))
        loss.backward()
        trainer.step(1)
    np.testing.assert_allclose(model.w.data().asnumpy(), np.array(START) - 0.25, rtol=1e-6)
    assert amp.applied_steps == 0


def test_a_closed_session_takes_its_guards_along():
    amp, model = session(**SETTINGS["float32"]), product()
    trainer = trainer_of(model, "sgd", 0.125)
    trainer.step = own = lambda batch_size: None
    amp.prepare(model, trainer)
    scaled_backward(amp, model, trainer)
    amp.close()
    assert vars(trainer)["step"] is own
    assert not {"update", "allreduce_grads"} & vars(trainer).keys()
