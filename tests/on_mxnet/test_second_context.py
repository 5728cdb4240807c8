"""What holds of a second context as of the first: states that are loaded, devices that are named, records, checks."""

import numpy as np
import pytest
from products import START, product
from test_contexts import CONTEXTS, ONES, copies, feed, two_copies

import unifiedamp as ua
from unifiedamp.compat import mxnet as compat
from unifiedamp_mxnet.mxnet_api import autograd, cast, context_of, dtype_name, from_numpy, gluon, mx


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_moments_that_are_loaded_are_on_both(kind):
    straight, *trained = two_copies(0.125, kind=kind)
    for _ in range(2):
        feed(straight, *trained, ONES, ONES * 2)
    state = straight.backend.weights.read_optimizer(trained[1], trained[:1])
    amp, model, trainer = two_copies(0.125, kind=kind)
    amp.load_master_weights(model, straight.master_weights(trained[0]))
    amp.backend.weights.write_optimizer(trainer, [model], state)
    for each in ((straight, *trained), (amp, model, trainer)):
        feed(*each, ONES, ONES * 2)
    first, second = copies(model, trainer)
    assert np.array_equal(first, second)
    assert np.array_equal(first, copies(*trained)[0])


def test_an_inf_gradient_is_recorded_on_the_context_that_has_it():
    amp, model, trainer = two_copies(0.125)
    records = []
    with amp.record(records.append, every=1):
        feed(amp, model, trainer, ONES, ONES * 1e38)  # at a scale of 4
    (found,) = [record["first"] for record in records if record["kind"] == "ranks"]
    assert found == {"during": "backward", "ranks": [1], "name": "w"}


def test_a_session_on_a_device_that_is_named():
    amp = ua.Amp("mxnet", "float32", device="cpu:1")
    assert str(context_of(amp.to_native(ONES))) == "cpu(1)"
    with amp.scope():
        model = product()
    amp.prepare(model, gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.125}))


@pytest.mark.parametrize("there", [[mx.cpu(0), mx.cpu(2)], [mx.cpu(1), mx.cpu(0)], [mx.cpu(0)]], ids=str)
def test_a_model_that_was_moved_is_refused(there):
    amp, model, trainer = two_copies(0.125)
    feed(amp, model, trainer, ONES, ONES)
    move = getattr(model.collect_params(), "reset_ctx", None) or model.reset_device
    move(there)
    with pytest.raises(ua.PrepareError, match=r"cpu\(0\), cpu\(1\)"), amp.autocast():
        model(from_numpy(ONES, there[0]))


def test_compat_updates_no_weight_before_gradients_are_checked():
    compat.init("float32")
    try:
        model = product(contexts=CONTEXTS)
        trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.125})
        compat.init_trainer(trainer, loss_scale=ua.StaticLossScale(4.0))
        for value, expected in ((np.inf, START), (1.0, np.array(START) - 2 * 0.125 / 2)):
            with autograd.record():
                losses = [model(from_numpy(ONES * value, ctx)) for ctx in CONTEXTS]
                with compat.scale_loss(losses, trainer) as scaled:
                    autograd.backward(scaled)
            trainer.step(2)
            for ctx in CONTEXTS:
                np.testing.assert_allclose(model.w.data(ctx).asnumpy(), expected, rtol=1e-6)
    finally:
        compat.close()


def test_arrays_in_a_users_dictionary_stay_as_they_are():
    @ua.amp_function(cast_inputs="float32")
    def total(parts):
        return parts["x"] + parts["deep"][0]["y"]

    x = cast(from_numpy(ONES, mx.cpu()), "bfloat16")
    parts = {"x": x, "deep": [{"y": x}]}
    with ua.Amp("mxnet", "mixed_bfloat16").autocast():
        assert dtype_name(total(parts)) == "float32"
    assert parts["x"] is x
    assert parts["deep"][0]["y"] is x
