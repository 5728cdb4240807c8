"""Float32 master weights on MXNet: against float64 numpy, and against MXNet's own multi_precision update."""

import math

import numpy as np
import pytest
from products import OPTIMIZERS, PURE, START, feed, gradients, half, master, prepared, product, session, trainer_of

from unifiedamp_mxnet.mxnet_api import dtype_name, from_numpy, mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_follow_the_float32_master(compiled, momentum):
    """Oracle: SGD in float64 numpy; one step is far below what float16 can hold."""
    lr = 2.0**-13
    amp, model, trainer = prepared("momentum" if momentum else "sgd", lr=lr)
    expected, velocity = np.array(START, np.float32).astype(np.float64), 0.0
    for gradient in gradients(20):
        feed(amp, model, trainer, gradient, compiled)
        velocity = momentum * velocity - lr * gradient.astype(np.float64)
        expected = expected + velocity
        np.testing.assert_allclose(master(amp, model), expected, rtol=3e-7, atol=1e-7)
        assert dtype_name(model.w.data()) == "float16"
        assert np.array_equal(model.w.data().asnumpy(), master(amp, model).astype(np.float16))
    assert amp.applied_steps == 20


def test_small_updates_add_up_in_the_master_and_are_lost_without():
    ones = [1.0] * 4
    amp, model, trainer = prepared(lr=2.0**-13, values=ones)
    for _ in range(8):
        feed(amp, model, trainer, ones)
    assert model.w.data().asnumpy().tolist() == [1.0 - 2.0**-10] * 4
    plain = session(master_weights=False, loss_scale=None)
    model = product(ones)
    model, trainer = plain.prepare(model, trainer_of(model, "sgd", 2.0**-13))
    for _ in range(8):
        feed(plain, model, trainer, ones)
    assert model.w.data().asnumpy().tolist() == ones


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_update_is_mxnets_own_multi_precision(kind):
    """Oracle: MXNet's updater over a float16 weight with ``multi_precision``, no unifiedamp in it."""
    amp, model, trainer = prepared(kind)
    name = "sgd" if kind == "momentum" else kind
    optimizer = mx.optimizer.create(name, learning_rate=2.0**-10, multi_precision=True, **OPTIMIZERS[kind])
    updater, low = mx.optimizer.get_updater(optimizer), half(START)
    amp.load_master_weights(model, {"w": np.array(START, np.float16)})
    for gradient in gradients():
        feed(amp, model, trainer, gradient)
        updater(0, half(gradient), low)
    arrays = [part.asnumpy() for part in updater.states[0] if hasattr(part, "asnumpy")]
    (theirs,) = [part for part in arrays if np.array_equal(part.astype(np.float16), low.asnumpy())]
    np.testing.assert_allclose(master(amp, model), theirs, rtol=1e-6)
    assert not np.array_equal(master(amp, model), np.array(START, np.float32))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_skipped_step_leaves_masters_and_states_alone(bad, compiled):
    amp, model, trainer = prepared("adam")
    rows = gradients(4)
    for row in rows[:2]:
        feed(amp, model, trainer, row, compiled)
    before, states = master(amp, model), _numbers(trainer)
    assert not feed(amp, model, trainer, [1.0, bad, 1.0, 1.0], compiled).applied
    assert np.array_equal(master(amp, model), before)
    assert all(np.array_equal(one, other) for one, other in zip(_numbers(trainer), states, strict=True))
    assert (trainer._optimizer.num_update, amp.skipped_steps, amp.loss_scale) == (2, 1, 2.0)
    assert feed(amp, model, trainer, rows[2], compiled).applied
    assert not np.array_equal(master(amp, model), before)


def _numbers(trainer):
    def flat(state):
        return [n for part in state for n in flat(part)] if isinstance(state, (tuple, list)) else [state]

    return [
        part.asnumpy() for state in trainer._updaters[0].states.values() for part in flat(state) if part is not None
    ]


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_resumed_training_is_the_same(kind, tmp_path):
    """Weights by ``amp.master_weights``, the Trainer's by its own file, which holds the masters in float32."""
    rows, file = gradients(10), str(tmp_path / "trainer.states")
    straight, first, second = prepared(kind), prepared(kind), prepared(kind, values=[7.0] * 4)
    for row in rows:
        feed(*straight, row)
    for row in rows[:5]:
        feed(*first, row)
    first[2].save_states(file)
    second[0].load_state_dict(first[0].state_dict())
    second[2].load_states(file)
    held = [part for part in second[2]._updaters[0].states[0] if hasattr(part, "asnumpy")]
    assert any(np.array_equal(part.asnumpy(), master(*first[:2])) for part in held)
    second[0].load_master_weights(second[1], first[0].master_weights(first[1]))
    for row in rows[5:]:
        feed(*second, row)
    assert np.array_equal(master(*second[:2]), master(*straight[:2]))
    assert np.array_equal(second[1].w.data().asnumpy(), straight[1].w.data().asnumpy())
    assert second[0].state_dict()["state"] == straight[0].state_dict()["state"]


def test_gradients_that_float16_would_lose_arrive():
    """Unscaled in float16, 2**-26 would be zero."""
    amp, model, trainer = prepared(
        values=[0.0] * 4, lr=1.0, loss_scale=2.0**10, policy=PURE.replace(output_dtype="float32")
    )
    seen = []
    amp.backward(lambda: model(amp.to_native(np.ones(4, np.float32))) * 2.0**-26, trainer)
    amp.clip_grad_value(trainer, 1.0)
    seen += [(dtype_name(g), g.asnumpy().tolist()) for g in amp.gradients(trainer).values()]
    amp.step(trainer)
    assert seen == [("float32", [2.0**-26] * 4)]
    assert master(amp, model).tolist() == [-(2.0**-26)] * 4


def test_each_of_two_trainers_keeps_its_own_window():
    amp = session(accumulate_steps=2)
    models = [product(), product()]
    *models, one, other = amp.prepare(*models, *(trainer_of(model, "sgd", 1.0) for model in models))
    ones = amp.to_native(np.ones(4, np.float32))
    for trainers in ([one, other], [one]):
        with amp.autocast():
            loss = models[0](ones) + models[1](ones)
        with amp.scale_loss(loss, trainers) as scaled:
            scaled.backward()
        if trainers == [one]:
            assert {tuple(g.asnumpy()) for g in amp.gradients(one).values()} == {(4.0,) * 4}
            assert {tuple(g.asnumpy()) for g in amp.gradients(other).values()} == {(2.0,) * 4}
        amp.step(one)
    np.testing.assert_allclose(master(amp, models[0]), np.array(START) - 1.0, rtol=1e-6)
    np.testing.assert_allclose(master(amp, models[1]), START, rtol=1e-6)


@pytest.mark.parametrize("bad", [None, 1])
def test_contexts_agree(bad):
    amp = session()
    model = product(contexts=CONTEXTS)
    model, trainer = amp.prepare(model, trainer_of(model, "momentum", 0.5))
    for step in range(2):
        values = [np.array([1.0, 2.0, 3.0, 4.0], np.float32), np.full(4, 2.0**-10, np.float32)]
        if bad is not None and step:
            values[bad][2] = np.inf
        with amp.autocast():
            losses = [model(from_numpy(x, ctx)) for x, ctx in zip(values, CONTEXTS, strict=True)]
        with amp.scale_loss(losses, trainer) as scaled:
            scaled.backward()
        amp.step(trainer)
    total = np.array([1.0, 2.0, 3.0, 4.0]) + 2.0**-10
    expected = np.array(START) - 0.5 * total * (1.0 if bad is not None else 2.9)
    masters = [updater.states[0] for updater in trainer._updaters]
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(*masters, strict=True))
    np.testing.assert_allclose(master(amp, model), expected, rtol=1e-6)
    low = [model.w.data(ctx).asnumpy() for ctx in CONTEXTS]
    assert np.array_equal(*low)
    assert np.array_equal(low[0], master(amp, model).astype(np.float16))
