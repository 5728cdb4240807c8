"""Gluon Trainers: several contexts, kvstores, accumulation, rescaling, saved states."""

import copy
import pickle

import numpy as np
import pytest
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import NUMPY_API, autograd, call, gluon, mx, upstream

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=100)
COPIES = [copy.deepcopy]
if not NUMPY_API:  # blocks and parameters of MXNet 2 hold weak references, which Python does not pickle
    COPIES.append(lambda pair: pickle.loads(pickle.dumps(pair)))


def prepared(net, policy="float32", contexts=None, trainer=None, **options):
    amp = ua.Amp("mxnet", policy, **options)
    model = net(contexts)
    return amp, *amp.prepare(model, trainer(model) if trainer else sgd(model))


def test_a_step_applies_the_gradient_of_the_loss_itself(net, array):
    """Oracle: plain float64 numpy, w -= lr * gradient of mean(xW + b)."""
    amp, model, trainer = prepared(net, loss_scale=SCALE)
    x = batch()
    before = weights(model)
    amp.backward(lambda: model(array(x)).sum(), trainer)
    amp.step(trainer)
    hidden = np.maximum(x.astype(np.float64) @ before["0.weight"].T + before["0.bias"], 0)
    expected = before["1.weight"] - 0.1 * np.repeat(hidden.sum(0)[None], 4, axis=0)
    assert np.allclose(weights(model)["1.weight"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unscaled", [False, True])
def test_the_users_rescale_grad_counts_once(net, array, unscaled):
    amp, model, trainer = prepared(net, loss_scale=SCALE, trainer=lambda m: sgd(m, rescale_grad=0.5))
    before = weights(model)["1.bias"]
    amp.backward(lambda: model(array(batch())).sum(), trainer)
    if unscaled:
        amp.unscale(trainer)
    amp.step(trainer)
    assert np.allclose(weights(model)["1.bias"], before - 0.1 * 0.5 * 6, rtol=1e-5)


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("hybrid", [False, True])
def test_inf_on_one_context_moves_nothing_on_either(net, array, bad, hybrid):
    amp, model, trainer = prepared(net, contexts=CONTEXTS, loss_scale=SCALE, trainer=lambda m: sgd(m, momentum=0.9))
    if hybrid:
        amp.compile(model)
    values = [batch(1), batch(2)]
    values[bad][0, 0] = np.inf
    before = [weights(model, ctx) for ctx in CONTEXTS]
    for data, applied in ((values, False), ([batch(3), batch(4)], True)):
        with amp.autocast():
            losses = [model(array(x, ctx)).sum() for x, ctx in zip(data, CONTEXTS, strict=True)]
        with amp.scale_loss(losses, trainer) as scaled:
            scaled.backward()
        outcome = amp.step(trainer)
        assert outcome.applied is applied
        for ctx, old in zip(CONTEXTS, before, strict=True):
            now = weights(model, ctx)
            assert all(np.array_equal(now[k], old[k]) is not applied for k in ("0.weight", "1.weight"))
            assert all(np.isfinite(value).all() for value in now.values())
    assert amp.loss_scale == 4.0
    assert trainer.optimizer.num_update == 1
    assert all(np.array_equal(weights(model, CONTEXTS[0])[k], weights(model, CONTEXTS[1])[k]) for k in before[0])


def test_contexts_one_after_the_other_are_the_sum(net, array):
    amp, model, trainer = prepared(net, contexts=CONTEXTS, loss_scale=SCALE)
    before = weights(model)["1.bias"]
    for ctx in CONTEXTS:
        with amp.autocast():
            loss = model(array(batch(), ctx)).sum()
        with amp.scale_loss(loss, trainer) as scaled:
            scaled.backward()
    amp.unscale(trainer)
    gradients = amp.gradients(trainer)
    assert [len(grads) for grads in gradients.values()] == [2] * 4
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in gradients.values())
    assert np.allclose(gradients["1.bias"][0].asnumpy(), 12.0)
    norm = float(amp.clip_grad_norm(trainer, 1.0).asnumpy().reshape(()))
    assert norm > 12.0
    amp.step(trainer)
    moved = [before - weights(model, ctx)["1.bias"] for ctx in CONTEXTS]
    assert np.allclose(moved[0], 0.1 * 12.0 / norm, rtol=1e-4)
    assert np.array_equal(*moved)


def test_update_on_kvstore_is_switched_off_in_time(net, array):
    amp, model, trainer = prepared(net, contexts=CONTEXTS)
    amp.backward(lambda: model(array(batch())).mean(), trainer)
    amp.step(trainer)
    assert not trainer._update_on_kvstore


def test_a_trainer_that_already_updates_on_its_kvstore_is_refused(net):
    model = net(CONTEXTS)
    trainer = gluon.Trainer(model.collect_params(), "signum", {"learning_rate": 0.1}, update_on_kvstore=True)
    trainer._init_kvstore()
    assert trainer._update_on_kvstore
    with pytest.raises(ua.PrepareError, match=r"gluon\.Trainer\(\.\.\., update_on_kvstore=False\)"):
        ua.Amp("mxnet", "float32").prepare(model, trainer)


def test_accumulation_adds(net, array):
    amp, model, trainer = prepared(net, accumulate_steps=2, loss_scale=SCALE)
    before = weights(model)["1.bias"]
    for _ in range(2):
        for seed in (1, 2):
            amp.backward(lambda s=seed: model(array(batch(s))).sum(), trainer)
            amp.step(trainer)
    assert np.allclose(weights(model)["1.bias"], before - 2 * 0.1 * 6.0, rtol=1e-5)


def test_the_users_own_grad_req_is_given_back(net):
    model = net()
    for param in model.collect_params().values():
        param.grad_req = "add"
    amp = ua.Amp("mxnet", "float32")
    amp.prepare(model, sgd(model))
    assert {p.grad_req for p in model.collect_params().values()} == {"write"}
    amp.close()
    assert {p.grad_req for p in model.collect_params().values()} == {"add"}


def test_a_graph_recorded_before_the_first_backward_adds_too(net, array):
    amp, model, trainer = prepared(net)
    before = weights(model)["1.bias"]
    with amp.autocast():
        losses = [model(array(batch(seed))).sum() for seed in (1, 2)]
    for loss in losses:
        with amp.scale_loss(loss, trainer) as scaled:
            scaled.backward()
    amp.step(trainer)
    assert np.allclose(weights(model)["1.bias"], before - 0.1 * 12.0, rtol=1e-5)


def test_the_users_own_grad_req_add_is_emptied_with_each_window(net, array):
    amp, model, trainer = prepared(net)
    for param in model.collect_params().values():
        param.grad_req = "add"
    before = weights(model)["1.bias"]
    for _ in range(2):
        amp.backward(lambda: model(array(batch())).sum(), trainer)
        amp.step(trainer)
    assert np.allclose(weights(model)["1.bias"], before - 2 * 0.1 * 6.0, rtol=1e-5)


def test_a_loss_leaves_trainers_it_does_not_name_alone(net, array):
    """The second loss reaches both models; only the Trainer named takes its gradients."""
    amp = ua.Amp("mxnet", "float32")
    first, second = net(seed=1), gluon.nn.Dense(8, in_units=4)
    second.initialize()
    trainers = [sgd(first), sgd(second)]
    amp.prepare(first, second, *trainers)
    before = weights(first)["1.bias"]
    with amp.autocast():
        one, two = first(array(batch())).sum(), second(first(array(batch()))).sum()
    for loss, trainer in ((one, trainers[0]), (two, trainers[1])):
        with amp.scale_loss(loss, trainer) as scaled:
            scaled.backward()
    for trainer in trainers:
        assert amp.step(trainer).applied
    assert np.allclose(weights(first)["1.bias"], before - 0.1 * 6.0, rtol=1e-5)


def test_two_losses_that_share_an_input_say_what_to_do(net, array):
    amp, model, trainer = prepared(net)
    x = array(batch())
    with amp.autocast():
        losses = [model(x).sum(), model(x).mean()]
    with pytest.raises(ua.LossError, match="add the losses"):
        for loss in losses:
            with amp.scale_loss(loss, trainer) as scaled:
                scaled.backward()
    amp.discard_step(trainer)
    with amp.autocast():
        losses = [model(x).sum(), model(x).mean()]
    for loss in losses:
        with amp.scale_loss(loss, trainer) as scaled:
            scaled.backward(retain_graph=True)
    assert amp.step(trainer).applied


def test_unused_parameters_are_left_out(net, array):
    model, extra = net(), gluon.nn.Dense(2, in_units=3)
    extra.initialize()
    amp = ua.Amp("mxnet", "float32")
    both = gluon.Trainer(
        [*model.collect_params().values(), *extra.collect_params().values()], "sgd", {"learning_rate": 0.1, "wd": 0.1}
    )
    amp.prepare(model, extra, both)
    unused = weights(extra)
    amp.backward(lambda: model(array(batch())).sum(), both)
    assert sorted(amp.gradients(both)) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert amp.step(both).applied
    assert all(np.array_equal(weights(extra)[k], unused[k]) for k in unused)


def test_a_step_without_gradients_says_which_parameters(net, array):
    amp, model, trainer = prepared(net, loss_scale=SCALE)
    other = net(seed=5)
    frozen = sgd(other)
    amp.prepare(other, frozen)
    amp.backward(lambda: model(array(batch())).sum(), trainer)
    with pytest.warns(ua.errors.StepWarning, match="no gradient reached"):
        outcome = amp.step(frozen)
    assert (outcome.applied, outcome.reason) == (False, "no_gradients")


def test_parameters_whose_shape_follows_from_the_input(array):
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Dense(5), gluon.nn.Dense(2))
    model.initialize()
    amp = ua.Amp("mxnet", "mixed_bfloat16", loss_scale=SCALE, accumulate_steps=2)
    model, trainer = amp.prepare(model, sgd(model))
    for _ in range(2):
        amp.backward(lambda: model(array(batch())).mean(), trainer)
        outcome = amp.step(trainer)
    assert outcome.applied
    assert model[0].weight.shape == (5, 8)


def test_states_saved_without_the_scale_and_the_session_with_it(net, array, tmp_path):
    def train(amp, model, trainer, seeds):
        for seed in seeds:
            x = batch(seed) * (np.inf if seed == 2 else 1)
            amp.backward(lambda x=x: model(array(x)).mean(), trainer)
            amp.step(trainer)

    make = {"loss_scale": SCALE, "trainer": lambda m: sgd(m, momentum=0.9)}
    whole = prepared(net, **make)
    train(*whole, range(1, 6))
    first = prepared(net, **make)
    train(*first, range(1, 4))
    first[2].save_states(str(tmp_path / "trainer"))
    first[1].save_parameters(str(tmp_path / "model"))
    state = first[0].state_dict()
    second = prepared(net, **make)
    second[2].load_states(str(tmp_path / "trainer"))
    second[1].load_parameters(str(tmp_path / "model"))
    second[0].load_state_dict(state)
    train(*second, range(4, 6))
    assert second[0].loss_scale == whole[0].loss_scale == 4.0
    assert all(np.array_equal(weights(second[1])[k], value) for k, value in weights(whole[1]).items())


def test_the_trainer_carries_mxnets_own_scaler_over_our_state(net, array):
    amp, model, trainer = prepared(net, contexts=CONTEXTS, loss_scale=SCALE)
    assert isinstance(trainer._amp_loss_scaler, upstream.LossScaler)
    before = weights(model)
    for x in (batch(1) * np.inf, batch(1)):
        with autograd.record():
            losses = [model(array(v, ctx)).sum() for v, ctx in zip((batch(1), x), CONTEXTS, strict=True)]
            with upstream.scale_loss(losses, trainer) as scaled:
                autograd.backward(scaled)
        trainer.step(1)
        if amp.skipped_steps == 1 and amp.applied_steps == 0:
            assert all(np.array_equal(weights(model)[k], value) for k, value in before.items())
    assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (1, 1, 4.0)
    assert np.allclose(weights(model)["1.bias"], before["1.bias"] - 0.1 * 12.0, rtol=1e-5)
    amp.close()
    assert not hasattr(trainer, "_amp_loss_scaler")


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2 has no sparse gradients in Gluon")
def test_a_sparse_gradient_is_looked_at_too(array):
    model = gluon.nn.Embedding(10, 4, sparse_grad=True)
    model.initialize()
    amp = ua.Amp("mxnet", "float32", loss_scale=SCALE)
    model, trainer = amp.prepare(model, sgd(model))
    for factor, applied in ((np.inf, False), (1.0, True)):
        amp.backward(lambda f=factor: (model(array([1, 3])) * f).sum(), trainer)
        assert amp.step(trainer).applied is applied
    assert np.isfinite(weights(model)["weight"]).all()


def test_finite_checks_in_chunks(monkeypatch):
    from unifiedamp_mxnet.training import multi_tensor

    monkeypatch.setattr(multi_tensor, "CHUNK", 2)
    arrays = [call("ones_like", [mx.nd.zeros((2,))]) for _ in range(5)]
    assert multi_tensor.all_finite(arrays)
    arrays[4][:] = np.nan
    assert not multi_tensor.all_finite(arrays)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_the_calls_of_a_step_inside_a_region(net, array, policy, grad_req):
    """MXNet refuses to write to arrays while it records, and dies when it is to record that they are zeroed."""
    amp, model, trainer = prepared(net, policy, loss_scale=SCALE, trainer=lambda m: sgd(m, momentum=0.9))
    for param in model.collect_params().values():
        param.grad_req = grad_req
    before = weights(model)["1.bias"]
    for _ in range(2):
        with amp.autocast():
            for _ in range(2):
                loss = model(array(batch())).sum() / 2
                with amp.scale_loss(loss, trainer) as scaled:
                    scaled.backward()
            amp.unscale(trainer)
            amp.clip_grad_norm(trainer, 1e6)
            amp.clip_grad_value(trainer, 1e6)
            assert amp.step(trainer).applied
            amp.discard_step(trainer)
            assert autograd.is_recording()
    assert np.allclose(weights(model)["1.bias"], before - 0.1 * 6.0 * 2.9, rtol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("copied", COPIES)
def test_copies_of_a_trainer_have_their_own_calls(net, array, policy, copied):
    """A deep copy's ``step`` was the original's, and a prepared Trainer, or its model, could not be pickled."""
    amp, model, trainer = prepared(net, policy, loss_scale=SCALE)
    amp.backward(lambda: model(array(batch())).sum(), trainer)
    _, other = copied((model, trainer))
    for name in ("step", "update", "allreduce_grads"):
        call = getattr(other, name)
        assert (call.__self__, call.__func__) == (other, getattr(gluon.Trainer, name))
    assert amp.step(trainer).applied
