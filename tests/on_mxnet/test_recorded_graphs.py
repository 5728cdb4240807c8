"""Recorded steps of hybridized models: by a graph that shows what is inside, with the numbers of eager."""

import numpy as np
import pytest
from trainers import sgd, weights

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import NUMPY_API, from_numpy, gluon, mx
from unifiedamp_mxnet.precision import recorded_graphs

pytestmark = pytest.mark.skipif(NUMPY_API, reason="MXNet 2 traces otherwise: recorded steps run imperatively")
RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(6, 1, 8, 8)).astype(np.float32), RNG.integers(0, 3, 6)) for _ in range(4)]


def net():
    """Branches, a layer used twice, one that hands on its input, one whose output is the model's, two outputs."""

    class Inner(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = gluon.nn.Conv2D(4, 3, padding=1, in_channels=4), gluon.nn.BatchNorm(in_channels=4)
            self.act = gluon.nn.Activation("relu")

        def hybrid_forward(self, F, x):
            return self.act(x + self.norm(self.conv(self.act(self.conv(x)))))

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.same, self.stem = gluon.nn.HybridLambda(lambda _, x: x), gluon.nn.Conv2D(4, 3, in_channels=1)
            self.inner, self.out = Inner(), gluon.nn.Dense(3, in_units=144)
            self.spare = gluon.nn.HybridLambda("square")

        def hybrid_forward(self, F, x):
            hidden = self.inner(self.stem(self.same(x)))
            return self.out(hidden), self.spare(hidden)

    model = Net()
    model.initialize()
    rng = np.random.default_rng(1)
    for param in model._collect_params_with_prefix().values():
        values = np.abs(rng.normal(size=param.shape)) * 0.3
        param.set_data(from_numpy(values.astype(np.float32), mx.cpu()))
    return model


def trained(compiled, every):
    amp = ua.Amp("mxnet", "float32", loss_scale="dynamic", compile="default" if compiled else "off")
    model = net()
    model, trainer = amp.prepare(model, sgd(model, 0.01, momentum=0.9))
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

    @amp.compile
    def step(x, y):
        with amp.autocast():
            logits, squares = model(x)
            loss = loss_fn(logits, y).mean() + 1e-3 * squares.mean()
        with amp.scale_loss(loss, trainer) as scaled_loss:
            scaled_loss.backward()
        amp.step(trainer)

    records = []
    recorder = amp.record(records.append, every=every) if every else None
    for x, y in BATCHES:
        step(amp.to_native(x), amp.to_native(y))
    if recorder is not None:
        recorder.stop()
    return model, [record for record in records if record["kind"] == "step"]


def rows(record):
    return {(row["layer"], row["kind"], row["place"], row["dtype"]): row["largest"] for row in record["activations"]}


def test_what_is_recorded_is_what_eager_records(monkeypatch):
    built = []
    native = recorded_graphs.build
    monkeypatch.setattr(recorded_graphs, "build", lambda *given: built.append(given[0]) or native(*given))
    model, records = trained(True, 2)
    assert built == [model]  # traced once for all recorded steps, and not run imperatively
    assert model._active
    _, eager = trained(False, 2)
    assert [record["step"] for record in records] == [record["step"] for record in eager] == [1, 2, 4]
    for one, other in zip(records, eager, strict=True):
        assert list(rows(one)) == list(rows(other))
        assert rows(one) == pytest.approx(rows(other), rel=1e-4)
        assert one["gradients"].keys() == other["gradients"].keys()
    layers = {layer for layer, *_ in rows(records[0])}
    assert {"", "same", "stem", "inner", "inner.conv", "inner.norm", "inner.act", "out", "spare"} <= layers


def test_recording_leaves_the_training_as_it_is():
    (recorded, _), (plain, _) = trained(True, 2), trained(True, None)
    for name, value in weights(plain).items():
        np.testing.assert_allclose(weights(recorded)[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
