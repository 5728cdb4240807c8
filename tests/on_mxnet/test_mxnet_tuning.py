"""What ``Tuning`` does on MXNet: aggregated updates, the layout pass, Gluon's loaders."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.errors import TuningWarning

ua.Amp("mxnet", "float32")  # MXNet needs the layer's help to be imported
import mxnet as mx  # noqa: E402
from mxnet import gluon  # noqa: E402

MXNET_2 = not mx.__version__.startswith("1.")


def amp_of(**items):
    return ua.Amp("mxnet", "float32", device="cpu", tuning={**items, "best_effort": True})


def dense(count=6):
    net = gluon.nn.HybridSequential()
    for _ in range(count):
        net.add(gluon.nn.Dense(4, in_units=4))
    net.initialize(mx.init.One())
    return net


def test_updates_are_aggregated_and_put_back():
    weights = []
    for items in ({}, {"fused_optimizer": True}):
        amp, net = amp_of(**items), dense()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4, "momentum": 0.9})
        found = trainer._optimizer.aggregate_num
        net, trainer = amp.prepare(net, trainer)
        sizes = []
        update = trainer._optimizer.update_multi_precision

        def counting(indices, *args, update=update, sizes=sizes):
            sizes.append(len(indices) if isinstance(indices, (list, tuple)) else 1)
            return update(indices, *args)

        trainer._optimizer.update_multi_precision = counting
        ones = amp.to_native(np.ones((2, 4), np.float32))
        for _ in range(2):
            amp.backward(lambda: net(ones).mean(), trainer)  # noqa: B023
            amp.step(trainer)
        assert sum(sizes) == 2 * 12
        assert (sizes == [12, 12]) is bool(items)
        weights.append([p.data().asnumpy() for p in net.collect_params().values()])
        amp.close()
        assert trainer._optimizer.aggregate_num == found
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_an_optimizer_that_cannot_is_told():
    amp, net = ua.Amp("mxnet", "float32", tuning={"fused_optimizer": True}), dense(1)
    trainer = gluon.Trainer(net.collect_params(), "rmsprop", {"learning_rate": 0.1})
    with pytest.warns(TuningWarning, match="RMSProp updates one parameter at a time"):
        amp.prepare(net, trainer)
    assert amp.explain().row("tuning.fused_optimizer").effect == "no effect"
    amp.close()


def test_the_layout_pass_is_used_where_there_is_one():
    amp = amp_of(channels_last=True)
    assert amp.backend.precision.tables.session.optimize_layout is MXNET_2
    assert amp.explain().row("tuning.channels_last").effect == ("native" if MXNET_2 else "no effect")
    assert not ua.Amp("mxnet", "float32").backend.precision.tables.session.optimize_layout
    amp.close()


def test_compile_says_what_hybridize_is_called_with():
    native = amp_of(compile=True).explain().row("tuning.compile").native
    for word in ("static_alloc=True", "static_shape=True", "forward_bulk_size=64", "mx.engine.bulk(64)"):
        assert word in native


@pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning")  # MXNet's own loader asks for it
def test_a_gluon_loader_is_prefetched():
    data = gluon.data.ArrayDataset(np.arange(10, dtype=np.float32), np.arange(10, dtype=np.int32))
    loader = gluon.data.DataLoader(data, batch_size=4)
    amp = ua.Amp("mxnet", "float32")
    made = [(x.asnumpy().tolist(), y.asnumpy().tolist()) for x, y in amp.prefetch(loader)]
    assert made == [([0, 1, 2, 3], [0, 1, 2, 3]), ([4, 5, 6, 7], [4, 5, 6, 7]), ([8, 9], [8, 9])]


def test_prefetched_arrays_are_of_the_kind_in_use():
    amp = ua.Amp("mxnet", "float32")
    for kind in [True] if MXNET_2 else [False, True]:
        with mx.util.np_shape(kind), mx.util.np_array(kind):
            (made,) = amp.prefetch([np.ones(2, np.float32)])
            assert type(made) is type(amp.to_native(np.ones(2, np.float32)))


def test_switches_left_on_are_told(monkeypatch):
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    amp = amp_of(set_to_none=True)
    assert "NaiveEngine" in amp.explain().row("debugging").native
    with pytest.warns(TuningWarning, match="NaiveEngine is on"):
        amp.prepare(dense(1))
    amp.close()


@pytest.mark.parametrize(("activation", "told"), [(None, True), ("relu", False)])
def test_a_bias_inside_an_activation_is_not_what_a_batch_norm_subtracts(activation, told):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=4, activation=activation), gluon.nn.BatchNorm(in_channels=4))
    net.initialize()
    amp = amp_of(fused_optimizer=True)
    amp.prepare(net)
    assert ("tuning.bias_before_norm" in {row.setting for row in amp.explain()}) == told
