"""Models and Trainers that get master weights on MXNet: what is cast, what goes on, what is refused.

Dense layers keep their products in float32, since the CPU has no other.
"""

import numpy as np
import pytest
from products import PURE, START, feed, master, prepared, product, session, trainer_of
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp_mxnet import capabilities
from unifiedamp_mxnet.device import selection
from unifiedamp_mxnet.mxnet_api import NUMPY_API, autograd, cast, dtype_name, from_numpy, gluon, mx


def norm_net(net):
    model = net()
    model.add(gluon.nn.LayerNorm(in_channels=4), gluon.nn.Dense(4, in_units=4), gluon.nn.BatchNorm(in_channels=4))
    model.initialize(mx.init.Xavier(), force_reinit=False)
    return model


def train(amp, model, trainer, array):
    losses = []
    for _ in range(12):
        loss = amp.backward(lambda: ((model(array(batch())) - 1) ** 2).mean(), trainer)
        losses.append(float(loss.asnumpy().reshape(())))
        amp.step(trainer)
    return losses


@pytest.mark.filterwarnings("ignore:Parameter .* is already initialized")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("keep", [True, False])
def test_a_model_is_cast_and_its_float32_values_become_the_masters(net, array, compiled, keep):
    model = norm_net(net)
    model.hybridize()
    model(array(batch()))  # traced in float32
    before = weights(model)
    amp = session(PURE.replace(layer_overrides={"1": "float32"}, keep_norm_float32=keep, output_dtype="float32"))
    trainer = sgd(model, lr=2.0**-6)
    amp.prepare(model, trainer)
    if compiled:
        amp.compile(model)
    found = amp.master_weights(model)
    assert all(np.array_equal(found[name], before[name]) for name in before)
    dtypes = {name: dtype_name(p.data()) for name, p in model._collect_params_with_prefix().items()}
    low = {name for name, dtype in dtypes.items() if dtype == "float16"}
    assert low == {"0.weight", "0.bias", "3.weight", "3.bias"} | (set() if keep else {"2.gamma", "2.beta"})
    wide, reference = ua.Amp("mxnet", "float32"), norm_net(net)
    for name, param in reference._collect_params_with_prefix().items():
        param.set_data(from_numpy(before[name], mx.cpu()))
    losses = train(amp, model, trainer, array), train(wide, *wide.prepare(reference, sgd(reference, 2.0**-6)), array)
    assert losses[0][-1] < 0.9 * losses[0][0]
    np.testing.assert_allclose(*losses, rtol=2e-3)  # a few roundings to float16, each 2**-11 of a value
    with amp.inference():
        assert dtype_name(model(array(batch()))) == "float32"
    after = amp.master_weights(model)
    for name, value in weights(model).items():
        assert np.array_equal(value.astype(np.float32), after[name].astype(value.dtype).astype(np.float32)), name


def test_states_of_float32_parameters_go_on_beside_their_masters():
    model = product()
    trainer = trainer_of(model, "momentum", 0.5)
    with autograd.record():
        loss = model(from_numpy(np.ones(4, np.float32), mx.cpu()))
    loss.backward()
    trainer.step(1)
    amp = session()
    amp.prepare(model, trainer)
    assert np.allclose(master(amp, model), np.array(START) - 0.5, rtol=1e-6)
    feed(amp, model, trainer, np.zeros(4))
    assert np.allclose(master(amp, model), np.array(START) - 0.5 - 0.45, rtol=1e-6)


def test_closing_leaves_a_trainer_that_goes_on_natively():
    amp, model, trainer = prepared("momentum", values=[1.0] * 4, lr=2.0**-13)
    feed(amp, model, trainer, [1.0] * 4)
    amp.close()
    with autograd.record():
        loss = model(cast(from_numpy(np.ones(4, np.float32), mx.cpu()), "float16"))
    loss.backward()
    trainer.step(1)
    held = [part.asnumpy() for part in trainer._updaters[0].states[0]]
    assert any(np.allclose(part, 1.0 - 2.9 * 2.0**-13, rtol=0, atol=1e-7) for part in held)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_copy_for_inference_has_the_masters_in_float32(net, array, compiled, traced):
    amp = session(PURE.replace(output_dtype="float32"))
    model = net()
    if traced:  # in float32
        model.hybridize()
        model(array(batch()))
    trainer = sgd(model, lr=2.0**-6)
    amp.prepare(model, trainer)
    if compiled:
        amp.compile(model)
    train(amp, model, trainer, array)
    copy = amp.convert_model(model, array(batch()))
    true = amp.master_weights(model)
    held = [param.data() for param in copy.collect_params().values()]
    assert {dtype_name(value) for value in held} == {"float32"}
    for value in held:
        assert any(value.shape == one.shape and np.array_equal(value.asnumpy(), one) for one in true.values())
    with amp.inference():
        expected = model(array(batch())).asnumpy()
    np.testing.assert_allclose(copy(array(batch())).asnumpy(), expected, rtol=2e-3, atol=2e-3)
    assert {dtype_name(p.data()) for p in model.collect_params().values()} == {"float16"}


def test_an_optimizer_without_float32_copies_is_refused():
    class Plain(mx.optimizer.SGD):
        def create_state_multi_precision(self, index, weight):
            return self.create_state(index, weight)

    model = product()
    trainer = gluon.Trainer(model.collect_params(), Plain(learning_rate=0.1))
    with pytest.raises(ua.PrepareError, match="Plain keeps no float32 copies"):
        session().prepare(model, trainer)
    assert dtype_name(model.w.data()) == "float32"


def test_states_in_float16_are_refused():
    model = product()
    model.cast("float16")
    trainer = trainer_of(model, "adam")
    trainer._updaters[0].states[0] = tuple(mx.nd.zeros((4,), dtype="float16") for _ in range(2))
    with pytest.raises(ua.PrepareError, match="no float32 master weights"):
        session().prepare(model, trainer)


def test_a_distributed_kvstore_is_refused():
    model = product()
    trainer = gluon.Trainer(model.collect_params(), "sgd", kvstore="dist_sync")
    with pytest.raises(ua.PrepareError, match="dist_sync"):
        session().prepare(model, trainer)


def test_what_is_declared(monkeypatch):
    amp = session()
    assert amp.capabilities.feature("master_weights")
    assert "multi_precision" in amp.explain().row("master_weights").native
    assert "no float16 matrix product on CPU" in amp.capabilities.policies["float16"].reason
    monkeypatch.setattr(selection, "built_with_cuda", lambda: True)
    monkeypatch.setattr(selection, "compute_capability", lambda index: (8, 0))
    on_gpu = capabilities.declare(mx.gpu(0)).policies
    assert on_gpu["float16"]
    assert not on_gpu["bfloat16"]


@pytest.mark.filterwarnings("ignore:Parameter .* is already initialized")
def test_a_model_without_a_trainer_keeps_its_float32_values(net):
    """Until there is one, whose masters begin from them."""
    model = norm_net(net)
    before, amp = weights(model), session(PURE)
    amp.prepare(model)
    found = amp.master_weights(model)
    assert all(np.array_equal(found[name], before[name]) for name in before)
    amp.prepare(model, sgd(model, lr=2.0**-6))
    found = amp.master_weights(model)
    assert all(np.array_equal(found[name], before[name]) for name in before)


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2's numpy arrays are dense")
def test_sparse_gradients_in_16_bits_are_refused_by_name():
    """MXNet's own error would come in the backward pass; in float32, or dense, the layer trains."""

    def made(sparse):
        model = gluon.nn.Embedding(6, 2, sparse_grad=sparse)
        model.initialize(mx.init.One())
        outer = gluon.nn.HybridSequential()
        outer.add(model)
        return outer

    refused = made(True)
    with pytest.raises(ua.PrepareError, match=r"layer '0' has sparse gradients .* layer_overrides=\{'0': 'float32'\}"):
        session(PURE).prepare(refused, sgd(refused))
    assert {param.dtype for param in refused.collect_params().values()} <= {"float32", np.float32}
    for policy, sparse in ((PURE.replace(layer_overrides={"0": "float32"}), True), (PURE, False)):
        amp, model = session(policy), made(sparse)
        model, trainer = amp.prepare(model, sgd(model, lr=0.5))
        rows = amp.to_native(np.array([0, 2, 2], np.int32))
        amp.backward(lambda model=model, rows=rows: model(rows).sum(), trainer)
        assert amp.step(trainer).applied
        (table,) = amp.master_weights(model).values()
        np.testing.assert_array_equal(table[:, 0], [0.5, 1.0, 0.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("kind", ["LayerNorm", "GroupNorm", "InstanceNorm", "BatchNorm"])
def test_every_kind_of_norm_is_kept_in_float32(kind):
    model = gluon.nn.HybridSequential()
    known = {} if kind == "GroupNorm" and not NUMPY_API else {"in_channels": 4}  # MXNet 1's has one value per group
    model.add(gluon.nn.Dense(4, in_units=4), getattr(gluon.nn, kind)(**known))
    model.initialize()
    session(PURE.replace(keep_norm_float32=True)).prepare(model)
    dtypes = {name: dtype_name(p.data()) for name, p in model._collect_params_with_prefix().items()}
    assert dtypes.pop("0.weight") == dtypes.pop("0.bias") == "float16"
    assert set(dtypes.values()) == {"float32"}
