"""Windows that end before they are full: discarded, or replaced by a loaded state. The next one begins with nothing.

The numbers are such that nothing is rounded.
"""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import probe_run, session
from unifiedamp.conformance.suite.test_interrupted_updates import KINDS

pytestmark = pytest.mark.needs("accumulation")

ENDS = ["discarded", "loaded"]
LR, SCALE = 0.5, ua.DynamicLossScale(initial_scale=4.0, growth_interval=100)


def end(amp, optimizer, how, state):
    if how == "discarded":
        amp.discard_step(optimizer)
    else:
        amp.load_state_dict(state)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(("dtype", "masters", "update"), [("float32", False, None), *KINDS])
def test_the_next_window_is_the_mean_of_its_own(harness, form, dtype, masters, update, how):
    policy = ua.Policy.parse(str(harness.pure_policies.get(dtype, dtype))).replace(update=update)
    options = {"policy": policy, "master_weights": masters, "loss_scale": SCALE, "accumulate_steps": 2}
    run = probe_run(harness, form, values=(8.0,), lr=LR, **options)
    state, expected = run.amp.state_dict(), 8.0
    for _ in range(2):
        run.feed(16.0)
        end(run.amp, run.optimizer, how, state)
        assert run.weights() == [expected]
        for gradient in (1.0, 3.0):
            run.feed(gradient)
        expected -= LR * 2.0
        assert run.weights() == [expected]


@pytest.mark.needs("several_optimizers")
@pytest.mark.parametrize("first", [0, 1])
def test_the_window_of_another_optimizer_goes_on(harness, first):
    """Each has its own micro-batches: the one that was not discarded is full before the other."""
    amp = session(harness, loss_scale=SCALE, accumulate_steps=2)
    models = [harness.probe([8.0]) for _ in range(2)]
    *models, one, two = amp.prepare(*models, *[harness.sgd([model], LR) for model in models])
    optimizers = (one, two)

    def feed(index, gradient):
        x = amp.to_native(np.float32([gradient]))
        amp.backward(lambda: models[index](x), optimizers[index])
        return amp.step(optimizers[index]).reason

    def weights():
        return [float(harness.parameters(model)["w0"][0]) for model in models]

    for index in range(2):
        assert feed(index, 16.0 if index == first else 1.0) == "accumulating"
    amp.discard_step(optimizers[first])
    assert (feed(1 - first, 3.0), feed(first, 2.0)) == ("applied", "accumulating")
    assert (weights()[first], weights()[1 - first]) == (8.0, 8.0 - LR * 2.0)
    assert (feed(1 - first, 1.0), feed(first, 4.0)) == ("accumulating", "applied")
    assert (weights()[first], weights()[1 - first]) == (8.0 - LR * 3.0, 8.0 - LR * 2.0)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("scale", [SCALE, ua.NoLossScale()])
def test_a_condition_does_not_outlive_its_window(harness, form, scale, how):
    run = probe_run(harness, form, values=(8.0,), lr=LR, loss_scale=scale, accumulate_steps=2)
    state = run.amp.state_dict()
    x = run.amp.to_native(np.float32([16.0]))
    for _ in range(2):
        before = run.weights()
        run.amp.backward(lambda: run.model(x), run.optimizer)
        run.amp.skip_if(True)
        run.amp.step(run.optimizer)
        end(run.amp, run.optimizer, how, state)
        for gradient in (1.0, 3.0):
            run.feed(gradient)
        assert run.weights() == [before[0] - LR * 2.0]


@pytest.mark.needs("ema")
@pytest.mark.parametrize("how", ENDS)
def test_an_average_moves_with_whole_windows(harness, form, how):
    """It is made in the middle of one, and begins with the weights before the next that is applied."""
    run = probe_run(harness, form, values=(8.0,), lr=LR, loss_scale=SCALE, accumulate_steps=2)
    run.feed(16.0)
    ema, oracle = run.amp.ema(run.model, 0.5), AverageOracle(0.5)
    state = run.amp.state_dict()
    end(run.amp, run.optimizer, how, state)
    for count in range(1, 3):
        before = harness.parameters(run.model)
        for gradient in (1.0, 3.0):
            run.feed(gradient)
        oracle.step(before, harness.parameters(run.model))
        oracle.check(ema.weights())
        assert ema.updates == count
        run.feed(16.0)
        oracle.check(ema.weights())
        run.amp.discard_step(run.optimizer)
