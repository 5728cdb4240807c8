"""Complex parameters: both parts of a gradient are checked, unscaled, clipped, averaged and saved."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.recorded import Kept

# Compilers warn of what they leave to be run as it is.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

INF = math.inf


class Complex:
    """Parameters of value 0 under SGD with learning rate 1: a step takes its gradient away."""

    def __init__(self, harness, form="eager", clip=None, count=1, **options):
        self.harness = harness
        self.amp = session(harness, form, **{"loss_scale": ua.DynamicLossScale(4.0, growth_interval=100)} | options)
        with self.amp.scope():
            model = harness.complex_probe((0j,) * count)
            optimizer = harness.sgd([model], 1.0)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)

        def step(x):
            self.amp.backward(lambda: self.model(x), self.optimizer)
            if clip is not None:
                clip(self.amp, self.optimizer)
            self.amp.step(self.optimizer)

        self._step = compiled(self.amp, form, step)

    def feed(self, *gradients):
        parts = [part for gradient in gradients for part in (gradient.real, gradient.imag)]
        self._step(self.amp.to_native(np.float32(parts)))

    def weights(self):
        return [complex(value[0]) for value in self.amp.master_weights(self.model).values()]


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("bad", [complex(INF, 1.0), complex(1.0, INF), complex(1.0, math.nan)])
def test_both_parts_are_checked_and_unscaled(harness, form, bad):
    run = Complex(harness, form, count=2)
    for gradient in (2 - 3j, bad, 1 + 1j):
        run.feed(0.5j, gradient)
    assert run.weights() == [-1j, -3 + 2j]
    assert (run.amp.applied_steps, run.amp.skipped_steps, run.amp.loss_scale) == (2, 1, 2.0)


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("scale", [4.0, "none"])
def test_the_norm_is_that_of_both_parts(harness, form, scale):
    """The norm of (2j, 3 + 6j) is 7."""
    run = Complex(harness, form, lambda amp, optimizer: amp.clip_grad_norm(optimizer, 3.5), 2, loss_scale=scale)
    run.feed(2j, 3 + 6j)
    np.testing.assert_allclose(run.weights(), [-1j, -1.5 - 3j], rtol=1e-5)


@pytest.mark.parametrize("scale", [4.0, "none"])
def test_the_norm_that_is_told_is_real(harness, scale):
    run = Complex(harness, loss_scale=scale, count=2)
    x = run.amp.to_native(np.float32([0.0, 2.0, 3.0, 6.0]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    norm = run.amp.to_numpy(run.amp.clip_grad_norm(run.optimizer, 100.0))
    assert norm.dtype.kind == "f"
    assert float(np.ravel(norm)[0]) == pytest.approx(7.0, rel=1e-5)
    assert run.amp.step(run.optimizer).applied


@pytest.mark.needs("float32_weights")
def test_each_part_is_clamped(harness, form):
    run = Complex(harness, form, lambda amp, optimizer: amp.clip_grad_value(optimizer, 2.0))
    for gradient in (3 + 1j, 1 - 5j):
        run.feed(gradient)
    assert run.weights() == [-3 + 1j]


@pytest.mark.needs("float32_weights", "accumulation")
def test_windows_of_both_parts(harness, form):
    run = Complex(harness, form, accumulate_steps=2)
    for gradient in (2 + 2j, 4j, complex(1.0, -INF), 1j):
        run.feed(gradient)
    assert run.weights() == [-1 - 3j]
    assert run.amp.skipped_steps == 1


@pytest.mark.needs("float32_weights", "ema")
def test_averages_of_both_parts(harness, form):
    run = Complex(harness, form)
    ema = run.amp.ema(run.model, 0.5)
    for gradient in (2 - 4j, complex(INF, 0.0), 2j):
        run.feed(gradient)
    (average,) = ema.weights().values()
    assert average.dtype == np.complex64
    assert average.tolist() == [0.5 * (-1 + 2j) + 0.5 * (-2 + 2j)]
    with ema.swapped():
        assert run.weights() == average.tolist()
    assert run.weights() == [-2 + 2j]
    state = run.amp.state_dict()
    other = Complex(harness, form)
    again = other.amp.ema(other.model, 0.5)
    other.amp.load_state_dict(state)
    assert next(iter(again.weights().values())).tolist() == average.tolist()


@pytest.mark.needs("float32_weights")
def test_weights_of_both_parts_come_back(harness):
    run = Complex(harness)
    run.feed(1 - 2j)
    (name,) = found = run.amp.master_weights(run.model)
    assert found[name].dtype == np.complex64
    run.amp.load_master_weights(run.model, {name: found[name] * 2j})
    assert run.weights() == [(-1 + 2j) * 2j]


@pytest.mark.needs("recording")
def test_both_parts_are_recorded(harness, form):
    run, kept = Complex(harness, form), Kept()
    with run.amp.record(kept):
        run.feed(complex(2.0, -(2.0**-3)))
    (record,) = kept.of("step")
    assert record["gradients"]["w0"]["true"]["exponents"] == {"1": 1, "-3": 1}
    assert record["gradients"]["w0"]["scaled"]["exponents"] == {"3": 1, "-1": 1}
