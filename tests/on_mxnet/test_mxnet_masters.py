"""Float32 master weights on MXNet: against float64 numpy, and against MXNet's own multi_precision update.

The CPU has no float16 matrix product, so models are elementwise, or keep their products in float32.
"""

import math

import numpy as np
import pytest
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp_mxnet import devices, facts
from unifiedamp_mxnet.native import NUMPY_API, autograd, cast, dtype_name, from_numpy, gluon, mx

PURE = ua.Policy("float16", "float16", "float16", op_overrides=dict.fromkeys(facts.PRODUCTS, "float32"))
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
START = [1.0, -2.0, 0.5, 1.0 / 3.0]
CONTEXTS = [mx.cpu(0), mx.cpu(1)]
OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "adam": {},
    "lamb": {},
    "rmsprop": {},
    "adagrad": {},
    "dcasgd": {},
}


class Product(gluon.HybridBlock):
    """sum(w * x): the gradient of w is x."""

    def __init__(self, values=START):
        super().__init__()
        init = mx.init.Constant(0.0)
        shape = (len(values),)
        self.w = (
            gluon.Parameter("w", shape=shape, init=init) if NUMPY_API else self.params.get("w", shape=shape, init=init)
        )

    if NUMPY_API:

        def forward(self, x):
            return (self.w.data(x.device) * x).sum()

    else:

        def hybrid_forward(self, F, x, w):
            return F.sum(w * x)


def product(values=START, contexts=None):
    model = Product(values)
    model.initialize(ctx=contexts or mx.cpu())
    model.w.set_data(from_numpy(np.asarray(values, np.float32), mx.cpu()))
    return model


def trainer_of(model, kind, lr=2.0**-10):
    name = "sgd" if kind == "momentum" else kind
    return gluon.Trainer(model.collect_params(), name, {"learning_rate": lr, **OPTIMIZERS[kind]})


def session(policy=PURE, **options):
    return ua.Amp("mxnet", policy, **{"master_weights": True, "loss_scale": SCALE} | options)


def prepared(kind="sgd", values=START, lr=2.0**-10, **options):
    amp = session(**options)
    model = product(values)
    return amp, *amp.prepare(model, trainer_of(model, kind, lr))


def feed(amp, model, trainer, values, compiled=False):
    def step(x):
        amp.backward(lambda: model(x), trainer)
        return amp.step(trainer)

    return (amp.compile(step) if compiled else step)(amp.to_native(np.asarray(values, np.float32)))


def master(amp, model):
    return amp.master_weights(model)["w"]


def half(values):
    return from_numpy(np.asarray(values, np.float16), mx.cpu()).as_nd_ndarray()


def gradients(steps=12, seed=0):
    """float16 numbers, so that no cast of a gradient rounds."""
    return np.random.default_rng(seed).normal(size=(steps, len(START))).astype(np.float16)


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


@pytest.mark.parametrize("compiled", [False, True])
def test_a_copy_for_inference_has_the_masters_in_float32(net, array, compiled):
    amp = session(PURE.replace(output_dtype="float32"))
    model = net()
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
    monkeypatch.setattr(devices, "built_with_cuda", lambda: True)
    monkeypatch.setattr(devices, "compute_capability", lambda index: (8, 0))
    on_gpu = facts.capabilities(mx.gpu(0)).policies
    assert on_gpu["float16"]
    assert not on_gpu["bfloat16"]
