"""Averages when the optimizers that train a model change: another one, more parameters, other groups."""

import json
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.suite.averaged import INF, SCALE, Averaged

pytestmark = pytest.mark.needs("ema")


def test_an_average_goes_on_with_another_optimizer(harness, form):
    """It trains the same weights; a backend may refuse it instead, and the first one goes on."""
    averaged = Averaged(harness, form, 0.75, warmup=True)
    amp, model = averaged.amp, averaged.model
    for feed in (1.0, INF, 2.0):
        averaged.feed(feed)
    other = harness.sgd([model], 0.25)
    try:
        model, other = amp.prepare(model, other)
    except ua.PrepareError:
        other = averaged.run.optimizer
    averaged.check()

    def step(x):
        amp.backward(lambda: model(x), other)
        amp.step(other)

    averaged.run.step = compiled(amp, form, step)
    for feed in (0.5, INF, 4.0, 1.0):
        before = averaged.weights()
        averaged.feed(feed)
        averaged.check()
        moved = [(value != before[name]).all() for name, value in averaged.weights().items()]
        assert all(moved) if math.isfinite(feed) else not any(moved)


@pytest.mark.needs("several_optimizers")
def test_an_average_of_a_model_while_others_join_its_optimizer(harness):
    """The optimizer takes another model's parameters between two steps: the first model's average goes on."""
    amp = session(harness, loss_scale=SCALE)
    with amp.scope():
        model, late = harness.probe([1.0, 2.0]), harness.probe([3.0, 4.0])
        optimizer = harness.sgd([model], 0.5)
    model, optimizer = amp.prepare(model, optimizer)
    ema, oracle = amp.ema(model, 0.75), AverageOracle(0.75)
    models, x = [model], amp.to_native(np.float32([1.0, 2.0]))
    for joins in (False, False, True, False):
        if joins:
            late = amp.prepare(late)
            harness.extend(optimizer, late)
            models.append(late)
        before = harness.parameters(model)
        amp.backward(lambda: sum((each(x) for each in models[1:]), models[0](x)), optimizer)
        assert amp.step(optimizer).applied
        oracle.step(before, harness.parameters(model))
        oracle.check(ema.weights())
        assert (set(ema.weights()), ema.updates) == (set(before), oracle.updates)


class TwoLayers:
    """One model whose two layers have an optimizer each, and its average."""

    def __init__(self, harness, amp=None):
        self.harness, self.amp = harness, amp or session(harness, loss_scale=SCALE)
        layer = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
        with self.amp.scope():
            model = harness.mlp([layer, layer])
            optimizers = [harness.layer_sgd(model, f"layer{index}", 0.125) for index in range(2)]
        self.model, *self.optimizers = self.amp.prepare(model, *optimizers)
        self.ema, self.oracle = self.amp.ema(self.model, 0.5), AverageOracle(0.5)

    def train(self, *chosen):
        """One backward pass, whose gradients the chosen optimizers apply."""
        amp, before = self.amp, self.harness.parameters(self.model)
        x = amp.to_native(np.float32([[1.0, 2.0]]))
        amp.backward(lambda: self.harness.mean_square(self.model(x), 0 * x), self.optimizers)
        for index, optimizer in enumerate(self.optimizers):
            if index in chosen:
                assert amp.step(optimizer).applied
            else:
                amp.discard_step(optimizer)
        after = self.harness.parameters(self.model)
        names = [name for name in after if any(f"layer{index}" in name for index in chosen)]
        self.oracle.step({name: before[name] for name in names}, {name: after[name] for name in names})

    def check(self):
        found = self.ema.weights()
        self.oracle.check(found)
        for name, value in self.harness.parameters(self.model).items():
            if name not in self.oracle.values:  # no step has moved it
                np.testing.assert_allclose(found[name], value, rtol=2e-6)


@pytest.mark.needs("several_optimizers")
def test_an_average_of_weights_that_two_optimizers_train(harness):
    """By turns, and read after each step; a backend may refuse the second one instead."""
    amp = session(harness, loss_scale=SCALE)
    with amp.scope():
        model = harness.probe([1.0, -3.0])
        optimizers = [harness.sgd([model], rate) for rate in (0.25, 0.5)]
    try:
        model, *optimizers = amp.prepare(model, *optimizers)
        ema, oracle = amp.ema(model, 0.75), AverageOracle(0.75)
    except ua.PrepareError as refusal:
        pytest.skip(f"refused: {refusal}")
    x = amp.to_native(np.float32([1.0, 2.0]))
    for index in (0, 0, 1, 0, 1, 1):
        before = harness.parameters(model)
        amp.backward(lambda index=index: model(x), optimizers[index])
        assert amp.step(optimizers[index]).applied
        oracle.step(before, harness.parameters(model))
        oracle.check(ema.weights())


@pytest.mark.needs("several_optimizers", "float32_weights")
@pytest.mark.parametrize("joins", ["its optimizer", "another"])
def test_an_average_of_a_layer_that_is_trained_later(harness, joins):
    """It is the layer's weights before, and moves from there; the other layer's average goes on."""
    amp = session(harness, loss_scale=SCALE)
    layer = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    with amp.scope():
        model = harness.mlp([layer, layer])
        optimizer = harness.layer_sgd(model, "layer0", 0.125)
    model, optimizer = amp.prepare(model, optimizer)
    ema, oracle, optimizers = amp.ema(model, 0.5), AverageOracle(0.5), [optimizer]
    x, trained = amp.to_native(np.float32([[1.0, 2.0]])), "layer0"
    for late in (False, False, True, False):
        if late:
            trained = "layer"
            if joins == "another":
                optimizers.append(amp.prepare(model, harness.layer_sgd(model, "layer1", 0.125))[1])
            else:
                harness.extend(optimizer, harness.put_layer(model, "layer1", *layer))
        before = amp.master_weights(model)
        amp.backward(lambda: harness.mean_square(model(x), 0 * x), optimizers)
        for each in optimizers:
            assert amp.step(each).applied
        after = amp.master_weights(model)
        moved = {name for name in after if trained in name}
        assert all((after[name] != before[name]).any() == (name in moved) for name in after)
        oracle.step({name: before[name] for name in moved}, {name: after[name] for name in moved})
        oracle.check(ema.weights())


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize(
    "saved", [False, pytest.param(True, marks=pytest.mark.needs("float32_weights"))], ids=["straight", "saved"]
)
@pytest.mark.parametrize("trained", [[(0,), (0,), (1,), (0, 1)], [(1,), (1,), (0,)], [(1,), (1,)]], ids=str)
def test_an_average_over_layers_with_an_optimizer_each(harness, saved, trained):
    """Each layer's average moves with its own optimizer's steps, also after it was saved and loaded."""
    run = TwoLayers(harness)
    for chosen in trained:
        run.train(*chosen)
        run.check()
    if saved:
        other = TwoLayers(harness)
        other.amp.load_master_weights(other.model, run.amp.master_weights(run.model))
        other.amp.load_state_dict(json.loads(json.dumps(run.amp.state_dict())))
        assert other.ema.updates == run.ema.updates
        run.model, run.ema, run.amp, run.optimizers = other.model, other.ema, other.amp, other.optimizers
        if len(run.oracle.values) < 4:  # what had not begun was saved as it was, and begins there
            for name, value in run.ema.weights().items():
                run.oracle.values.setdefault(name, np.float64(value))
    run.check()
    for chosen in ((1,), (0,), (0, 1)):
        run.train(*chosen)
        run.check()


@pytest.mark.needs("several_optimizers")
def test_an_average_over_layers_starts_anew(harness):
    """By a state without one: both layers' averages are the weights again."""
    run = TwoLayers(harness)
    bare = session(harness, loss_scale=SCALE).state_dict()
    run.train(0, 1)
    run.train(1)
    with pytest.warns(ua.StateWarning, match="starts anew"):
        run.amp.load_state_dict(bare)
    run.oracle = AverageOracle(0.5)
    assert run.ema.updates == 0
    run.check()
    run.train(0)
    run.check()
    run.train(1)
    run.check()
