"""Several optimizers over the layers of one model: each trains its own, and what is of the model is of all of them."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import compiled, session

pytestmark = pytest.mark.needs("several_optimizers")

LAYERS = ("layer0", "layer1")
RATES = (2.0**-6, 2.0**-7)
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)


class Halves:
    """``w1 * (w0 * x + b0) + b1``, an optimizer for each layer, and the same beside it in float64."""

    def __init__(self, harness, form="eager", later=False, **options):
        self.harness, self.form = harness, form
        self.amp = session(harness, form, **{"loss_scale": SCALE} | options)
        model = harness.mlp([(np.float32([[weight]]), np.float32([0.5])) for weight in (1.0, 0.75)])
        self.values = {"layer0": [1.0, 0.5], "layer1": [0.75, 0.5]}
        given = [harness.layer_sgd(model, *each) for each in zip(LAYERS, RATES, strict=True)]
        self.late = given.pop() if later else None
        self.model, *self.optimizers = self.amp.prepare(model, *given)

    def prepare_late(self):
        prepared = self.amp.prepare(self.model, self.late)
        self.optimizers.append(prepared[1])

    def backward(self, x, y, named):
        chosen = [self.optimizers[index] for index in named]
        self.amp.backward(lambda: self.harness.mean_square(self.model(x), y), chosen)

    def stepping(self, named=(0, 1), clip=None):
        def step(x, y):
            self.backward(x, y, named)
            for index in named:
                if clip is not None:
                    self.amp.clip_grad_norm(self.optimizers[index], clip)
                self.amp.step(self.optimizers[index])

        run = compiled(self.amp, self.form, step)

        def both(x, y):
            run(self.native(x), self.native(y))
            if math.isfinite(x):
                self.move(x, y, named, clip)

        return both

    def native(self, value):
        return self.amp.to_native(np.float32([[value]]))

    def move(self, x, y, named, clip=None):
        (w0, b0), (w1, b1) = self.values["layer0"], self.values["layer1"]
        d_out = 2 * (w1 * (w0 * x + b0) + b1 - y)
        gradients = ([d_out * w1 * x, d_out * w1], [d_out * (w0 * x + b0), d_out])
        for index in named:
            factor = 1.0 if clip is None else min(1.0, clip / math.hypot(*gradients[index]))
            moves = [RATES[index] * factor * gradient for gradient in gradients[index]]
            self.values[LAYERS[index]] = [v - m for v, m in zip(self.values[LAYERS[index]], moves, strict=True)]

    def check(self):
        found = {layer: [None, None] for layer in LAYERS}
        for name, value in self.harness.parameters(self.model).items():
            layer = next(known for known in LAYERS if known in name)
            found[layer]["bias" in name] = float(np.ravel(value)[0])
        assert found == {layer: pytest.approx(values, rel=1e-5) for layer, values in self.values.items()}


def test_one_loss_trains_each_layer_by_its_own(harness, form):
    halves = Halves(harness, form)
    step = halves.stepping()
    for x in (1.0, 1.5, math.inf, 0.5, 1.0):
        step(x, 0.25)
        halves.check()
    assert (halves.amp.applied_steps, halves.amp.skipped_steps, halves.amp.loss_scale) == (8, 2, 2.0)


def test_each_is_clipped_by_itself(harness, form):
    halves = Halves(harness, form)
    step = halves.stepping(clip=0.5)
    for x in (2.0, 1.0):
        step(x, 0.25)
        halves.check()


def test_in_turn(harness, form):
    """A loss that names one leaves the layers of the other, though its gradient passes through them."""
    halves = Halves(harness, form)
    steps = [halves.stepping((index,)) for index in range(2)]
    for index in (0, 1, 1, 0):
        steps[index](1.0, 0.25)
        halves.check()


@pytest.mark.needs("accumulation")
def test_windows(harness, form):
    halves = Halves(harness, form, accumulate_steps=2)
    native, x, y = halves.native, 1.0, 0.25

    def step(x, y):
        halves.backward(x, y, (0, 1))
        for optimizer in halves.optimizers:
            halves.amp.step(optimizer)

    run = compiled(halves.amp, form, step)
    for _ in range(2):
        for _ in range(2):
            run(native(x), native(y))
        halves.move(x, y, (0, 1))
        halves.check()
    assert halves.amp.applied_steps == 4


@pytest.mark.parametrize("scale", ["none", SCALE])
def test_one_prepared_later(harness, form, scale):
    """It trains its layer from then on, and takes part in decisions."""
    halves = Halves(harness, form, later=True, loss_scale=scale)
    first = halves.stepping((0,))
    first(1.0, 0.25)
    halves.check()
    halves.prepare_late()
    step = halves.stepping()
    for x in (1.5, 0.5):
        step(x, 0.25)
        halves.check()
    assert halves.amp.applied_steps == 5


@pytest.mark.needs("ema", "float32_weights")
@pytest.mark.parametrize("later", [False, True], ids=["together", "later"])
def test_an_average_is_of_all_layers(harness, form, later):
    """Also of those whose optimizer was prepared after the average was made."""
    halves = Halves(harness, form, later=later)
    ema, oracle = halves.amp.ema(halves.model, 0.5), AverageOracle(0.5)
    if later:
        halves.prepare_late()
    step = halves.stepping()
    for x in (1.0, math.inf, 1.5, 0.5):
        before = halves.amp.master_weights(halves.model)
        step(x, 0.25)
        if math.isfinite(x):
            oracle.step(before, halves.amp.master_weights(halves.model))
        if oracle.updates:
            assert set(ema.weights()) == set(before)
            oracle.check(ema.weights())
    halves.check()
