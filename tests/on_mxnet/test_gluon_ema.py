"""Averages of Gluon's parameters: on two contexts, of master weights, of blocks whose shapes are not known yet."""

import numpy as np
import pytest
from products import PURE, SCALE, START, product, session, trainer_of
from test_contexts import CONTEXTS, MASTERS, ONES, PLAIN, copies, feed
from trainers import batch, sgd

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp_mxnet.mxnet_api import NUMPY_API, autograd, from_numpy, gluon, mx

FORMS = pytest.mark.parametrize("compiled", [False, True])


def inside(model, trainer, ema):
    """Each context's weights while the average is swapped in."""
    with ema.swapped():
        return copies(model, trainer), [model.w.data(ctx).asnumpy() for ctx in CONTEXTS]


@FORMS
@pytest.mark.parametrize("setting", [PLAIN, PLAIN | {"loss_scale": "none"}, MASTERS], ids=["plain", "none", "masters"])
def test_the_average_is_one_on_two_contexts(setting, compiled):
    amp = session(**setting)
    model = product(contexts=CONTEXTS)
    model, trainer = amp.prepare(model, trainer_of(model, "sgd", 0.125))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    nan = ONES * np.nan
    for values in ((ONES, ONES), (ONES, None), (ONES, nan), (None, ONES * 2), (ONES, ONES)):
        if values[1] is nan and setting.get("loss_scale") == "none":
            continue
        before = {"w": copies(model, trainer)[0]}
        if feed(amp, model, trainer, *values, compiled=compiled).applied:
            oracle.step(before, {"w": copies(model, trainer)[0]})
        oracle.check(ema.weights(), rtol=1e-6)
        own, low = copies(model, trainer), [model.w.data(ctx).asnumpy() for ctx in CONTEXTS]
        averaged, shown = inside(model, trainer, ema)
        assert np.array_equal(*averaged)
        assert np.array_equal(*shown)
        np.testing.assert_allclose(averaged[0], oracle.values["w"], rtol=1e-6)
        for old, new in zip([*own, *low], [*copies(model, trainer), *(model.w.data(c).asnumpy() for c in CONTEXTS)],
                            strict=True):  # fmt: skip
            assert np.array_equal(old, new)
    state = amp.state_dict()
    feed(amp, model, trainer, ONES, ONES, compiled=compiled)
    amp.load_state_dict(state)
    oracle.check(ema.weights(), rtol=1e-6)
    averaged, _ = inside(model, trainer, ema)
    assert np.array_equal(*averaged)


def dense(units=4):
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dense(units))
    model.initialize()
    return model


@FORMS
def test_shapes_that_follow_from_the_first_batch(compiled):
    """Also statistics, which the Trainer holds as parameters, are the model's own."""
    amp = session(**PLAIN)
    model = dense()
    if compiled:
        model.hybridize()
    model, trainer = amp.prepare(model, sgd(model))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    before = None
    for index in range(4):
        x = from_numpy(batch(index), mx.cpu())
        amp.backward(lambda x=x: (model(x) ** 2).mean(), trainer)
        before = before or amp.master_weights(model)
        assert amp.step(trainer).applied
        after = amp.master_weights(model)
        trained = {name: value for name, value in after.items() if "running" not in name}
        oracle.step(before, trained)
        before = after
    oracle.check(ema.weights())
    assert set(ema.weights()) == set(after)
    for name in set(after) - set(oracle.values):
        assert np.array_equal(ema.weights()[name], after[name])
    assert len(set(after) - set(oracle.values)) == 2


def test_the_trainers_own_calls_are_refused_while_swapped_in():
    amp = session(**PLAIN)
    model = dense()
    model, trainer = amp.prepare(model, sgd(model))
    ema = amp.ema(model, 0.5)
    x = from_numpy(batch(), mx.cpu())
    amp.backward(lambda: (model(x) ** 2).mean(), trainer)
    assert amp.step(trainer).applied
    with ema.swapped():
        with autograd.record():
            loss = (model(x) ** 2).mean()
        loss.backward()
        for call in (trainer.step, trainer.update):
            with pytest.raises(ua.StepOrderError, match="swapped in"):
                call(1)
    trainer.step(1)
    assert ema.updates == 1


@pytest.mark.skipif(NUMPY_API, reason="Gluon 2 has no sparse gradients")
def test_weights_with_sparse_gradients_are_averaged_too():
    amp = session(**PLAIN)
    model = gluon.nn.Embedding(4, 2, sparse_grad=True)
    model.initialize(mx.init.One())
    model, trainer = amp.prepare(model, sgd(model, lr=0.5))
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    rows = from_numpy(np.array([0, 2, 2], np.float32), mx.cpu())
    for _ in range(2):
        before = amp.master_weights(model)
        amp.backward(lambda: model(rows).sum(), trainer)
        assert amp.step(trainer).applied
        oracle.step(before, amp.master_weights(model))
    oracle.check(ema.weights())


def test_many_parameters_in_several_operators():
    amp = session(**PLAIN)
    model = gluon.nn.HybridSequential()
    model.add(*[gluon.nn.Dense(2, in_units=2) for _ in range(40)])
    model.initialize()
    model, trainer = amp.prepare(model, sgd(model))
    ema, oracle = amp.ema(model, 0.75), AverageOracle(0.75)
    x = from_numpy(np.ones((1, 2), np.float32), mx.cpu())
    for _ in range(2):
        before = amp.master_weights(model)
        amp.backward(lambda: model(x).sum() + sum(layer(x).sum() for layer in model), trainer)
        assert amp.step(trainer).applied
        oracle.step(before, amp.master_weights(model))
    oracle.check(ema.weights())
    assert len(oracle.values) == 80


def test_masters_begin_where_the_float32_values_were():
    amp = session(policy=PURE, master_weights=True, loss_scale=SCALE)
    model = product()
    model, _ = amp.prepare(model, trainer_of(model, "sgd", 0.125))
    ema = amp.ema(model, 0.5)
    np.testing.assert_array_equal(ema.weights()["w"], np.float32(START))
