"""What a session does to Trainers and models that change after they were prepared, and how it gives them back."""

import numpy as np
import pytest
from products import PURE, START, product, session, trainer_of

from unifiedamp_mxnet.mxnet_api import from_numpy, gluon, mx

ONES = np.ones(4, np.float32)


def train(amp, models, trainer, value=1.0):
    x = from_numpy(ONES * value, mx.cpu())
    amp.backward(lambda: sum(model(x) for model in models), trainer)
    return amp.step(trainer)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("moment", ["never", "before", "after", "between"])
def test_gradients_that_are_to_be_added_train_as_others(policy, moment):
    """``grad_req`` is "add" again once the session is closed, whenever it was set."""
    amp, model = session(policy, master_weights=False), gluon.nn.Dense(1, in_units=4)
    model.initialize(mx.init.Constant(0.5))
    weight = model.weight
    if moment == "before":
        weight.grad_req = "add"
    model, trainer = amp.prepare(model, trainer_of(model, "sgd", 0.125))
    for count in range(1, 4):
        if (moment, count) in (("after", 1), ("between", 2)):
            weight.grad_req = "add"
        assert train(amp, [lambda x: model(x.reshape((1, 4))).sum()], trainer).applied
        np.testing.assert_array_equal(weight.data().asnumpy(), np.full((1, 4), 0.5 - 0.125 * count))
    amp.close()
    assert weight.grad_req == ("write" if moment == "never" else "add")


def test_states_that_were_loaded_stay_where_no_gradient_arrives(tmp_path):
    """Of parameters with master weights: their state is the one in the file until their next update."""
    amp = session(PURE)
    models = [product(), product()]
    trainer = gluon.Trainer([model.w for model in models], "sgd", {"learning_rate": 0.125, "momentum": 0.5})
    *models, trainer = amp.prepare(*models, trainer)
    train(amp, models, trainer)
    trainer.save_states(str(tmp_path / "states"))
    before = [master.tolist() for master in masters(amp, models)]
    train(amp, models, trainer)
    trainer.load_states(str(tmp_path / "states"))
    train(amp, models[:1], trainer, 0.0)
    assert masters(amp, models)[1].tolist() == before[1]


def masters(amp, models):
    return [amp.master_weights(model)["w"] for model in models]


@pytest.mark.parametrize("mode", ["default", "max"])
def test_a_model_that_is_prepared_after_a_step_was_compiled_is_hybridized(mode):
    amp, first, later = session("float32", master_weights=False), product(), product()
    first, one = amp.prepare(first, trainer_of(first, "sgd", 0.125))
    step = amp.compile(lambda model, trainer: train(amp, [model], trainer), mode=mode)
    step(first, one)
    assert first._active
    assert not later._active
    later, two = amp.prepare(later, trainer_of(later, "sgd", 0.125))
    assert later._active
    step(later, two)
    for model in (first, later):
        np.testing.assert_allclose(model.w.data().asnumpy(), np.array(START) - 0.125, rtol=1e-6)
