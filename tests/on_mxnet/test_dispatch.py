"""The dispatcher: casts in regions, and nothing of MXNet changed outside them."""

import threading

import numpy as np
import pytest
from trainers import batch, sgd, weights

import unifiedamp as ua
from unifiedamp.conformance.driver import settled_state
from unifiedamp.conformance.harness import load_harness
from unifiedamp_mxnet.mxnet_api import NUMPY_API, autograd, dtype_name, gluon, mx, upstream
from unifiedamp_mxnet.precision import casts


@pytest.fixture
def amp():
    session = ua.Amp("mxnet", "mixed_bfloat16")
    yield session
    session.close()


def test_modules_are_as_found_whatever_happens_inside(amp, net, array):
    harness = load_harness("mxnet")
    model, x = net(), array(batch())
    before = settled_state(harness)
    with pytest.raises(ZeroDivisionError), amp.autocast(), amp.autocast(enabled=False), amp.autocast():
        model(x)
        assert harness.global_state() != before
        raise ZeroDivisionError
    assert harness.global_state() == before
    assert casts.current.table is None
    assert not casts.current.stack


def test_a_model_made_and_hybridized_before_the_session(net, array):
    model, x = net(), array(batch())
    model.hybridize()
    plain = model(x).asnumpy()
    amp = ua.Amp("mxnet", "mixed_bfloat16")
    with amp.inference():
        low = model(x)
    assert 1e-4 < np.abs(amp.to_numpy(low) - plain).max() < 0.1
    assert np.array_equal(model(x).asnumpy(), plain)


@pytest.mark.parametrize("hybrid", [False, True])
def test_policies_take_turns_on_one_block(net, array, hybrid):
    model, x = net(), array(batch())
    expected = model(x).asnumpy()
    if hybrid:
        model.hybridize(static_alloc=True, static_shape=True)
    low, full = ua.Amp("mxnet", "mixed_bfloat16"), ua.Amp("mxnet", "float32")
    outputs = {"low": [], "full": [], "none": []}
    for _ in range(3):
        with low.inference():
            outputs["low"].append(low.to_numpy(model(x)))
            with low.autocast(enabled=False):
                outputs["none"].append(model(x).asnumpy())
        with full.inference():
            outputs["full"].append(model(x).asnumpy())
        outputs["none"].append(model(x).asnumpy())
    for same in (*outputs["full"], *outputs["none"]):
        assert np.allclose(same, expected, rtol=1e-6, atol=1e-6)
    for values in outputs["low"]:
        assert np.abs(values - expected).max() > 1e-4
        assert np.array_equal(values, outputs["low"][0])


def test_hybridized_and_imperative_agree_under_a_policy(amp, net, array):
    x = array(batch())
    imperative, hybrid = net(), net()
    hybrid.hybridize()
    with amp.inference():
        assert np.array_equal(amp.to_numpy(imperative(x)), amp.to_numpy(hybrid(x)))


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_export_after_training_under_a_policy_gives_the_float32_graph(amp, net, array, tmp_path):
    model, x = net(), array(batch())
    trainer = sgd(model)
    model, trainer = amp.prepare(model, trainer)
    amp.compile(model)
    amp.backward(lambda: model(x).mean(), trainer)
    amp.step(trainer)
    model(x)  # MXNet 2 exports what a plain call would run.
    model.export(str(tmp_path / "net"))
    loaded = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    assert np.allclose(loaded(x).asnumpy(), model(x).asnumpy(), atol=1e-6)


@pytest.mark.filterwarnings("ignore:Currently the model has been hybridized")
def test_the_model_forgets_graphs_when_it_changes(amp, net, array):
    model, x = net(), array(batch())
    model.hybridize()
    with amp.inference():
        assert model(x).shape == (6, 4)
    model.add(gluon.nn.Dense(3, in_units=4))
    model[2].initialize()
    model.hybridize()
    with amp.inference():
        assert model(x).shape == (6, 3)


def test_threads_have_regions_of_their_own(amp, net, array):
    model, x = net(), array(batch())
    model.hybridize()
    plain = model(x).asnumpy()
    with amp.inference():
        low = amp.to_numpy(model(x))
    failures = []

    def run(session, expected):
        for _ in range(20):
            if session is None:
                got = model(x).asnumpy()
            else:
                with session.inference():
                    got = amp.to_numpy(model(x))
            if not np.array_equal(got, expected):
                failures.append(np.abs(got - expected).max())

    threads = [threading.Thread(target=run, args=pair) for pair in ((amp, low), (None, plain)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_gradients_are_recorded_in_autocast_and_not_in_inference(amp):
    with amp.autocast():
        assert autograd.is_recording()
        assert autograd.is_training()
    with amp.inference(), amp.autocast():
        assert not autograd.is_recording()
        assert not autograd.is_training()
    assert not autograd.is_recording()


def test_an_operator_that_mxnet_does_not_list_gets_float32(amp, array):
    x = array(np.linspace(0.1, 1, 64).reshape(8, 8))
    linear = load_harness("mxnet")
    with amp.autocast():
        low = mx.npx.fully_connected(x, x, num_hidden=8, no_bias=True) if NUMPY_API else None
        if low is None:
            low = mx.nd.FullyConnected(x, x, num_hidden=8, no_bias=True)
        assert dtype_name(low) == "bfloat16"
        assert dtype_name(low.mean()) == "float32"
        assert dtype_name(mx.np.matmul(low, low) if NUMPY_API else mx.nd.dot(low, low)) == "float32"
    assert linear.run_op("linear") == "float32"


def test_mxnets_own_amp_is_refused_beside_ours(monkeypatch):
    monkeypatch.setattr(upstream, "_amp_initialized", True)
    with pytest.raises(ua.ConfigError, match=r"amp\.init\(\)"):
        ua.Amp("mxnet", "float32")


def test_close_gives_the_model_back(amp, net):
    model = net()
    before = {name: dict(vars(block)) for name, block in (("model", model), ("first", model[0]))}
    amp.prepare(model, sgd(model))
    assert vars(model) != before["model"]
    amp.close()
    assert dict(vars(model)) == before["model"]
    assert dict(vars(model[0])) == before["first"]
    assert weights(model)
