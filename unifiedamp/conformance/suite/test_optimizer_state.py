"""What an optimizer holds beside its settings: read, checked, and written into another one."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

pytestmark = pytest.mark.needs("float32_weights")

FEEDS = [(1.0, -2.0), (0.5, 3.0), (-4.0, 0.25)]


def run_of(harness, form="eager", policy="float32", **options):
    run = probe_run(
        harness,
        form,
        values=(1.0, -1.0),
        optimizer="adam",
        policy=policy,
        **{"lr": 2.0**-4, "loss_scale": 4.0} | options,
    )
    return run, run.amp.backend.weights


def state_of(run, weights):
    state = weights.read_optimizer(run.optimizer, [run.model])
    if state is None:
        pytest.skip("read_optimizer returns None: this optimizer's state is not known")
    return state


def going_on(harness, run, form="eager", **options):
    """Return a new run that has the weights and the optimizer's state of an old one."""
    other, weights = run_of(harness, form, **options)
    state = state_of(run, weights)
    weights.check_optimizer(other.optimizer, [other.model], state)
    other.amp.load_master_weights(other.model, run.amp.master_weights(run.model))
    weights.write_optimizer(other.optimizer, [other.model], state)
    return other


def masters(run):
    return {name: value.tolist() for name, value in run.amp.master_weights(run.model).items()}


@pytest.mark.parametrize(("steps", "scale"), [(1, 4.0), (2, 4.0), (2, "none")])
def test_training_goes_on_bit_for_bit(harness, form, steps, scale):
    """Moments and counts of steps alike: another count corrects Adam's moments otherwise."""
    run, _ = run_of(harness, form, loss_scale=scale)
    for feed in FEEDS[:steps]:
        run.feed(*feed)
    other = going_on(harness, run, form, loss_scale=scale)
    assert harness.optimizer_steps(other.optimizer) == steps
    for feed in FEEDS[steps:]:
        for each in (run, other):
            each.feed(*feed)
        if form in harness.forms_that_warm_up:
            np.testing.assert_allclose(other.weights(), run.weights(), rtol=1e-5)
        else:
            assert masters(other) == masters(run)
    assert harness.optimizer_steps(other.optimizer) == harness.optimizer_steps(run.optimizer) == len(FEEDS)


@pytest.mark.parametrize("trained", [0, 2])
def test_learning_rates_stay(harness, trained):
    """They are settings of the loop that goes on, before its first step and later."""
    run, weights = run_of(harness)
    run.feed(*FEEDS[0])
    state = state_of(run, weights)
    other, weights = run_of(harness, lr=2.0**-3)
    for feed in FEEDS[:trained]:
        other.feed(*feed)
    other.amp.load_master_weights(other.model, run.amp.master_weights(run.model))
    weights.write_optimizer(other.optimizer, [other.model], state)
    before = np.array(run.weights())
    run.feed(*FEEDS[1])
    other.feed(*FEEDS[1])
    np.testing.assert_allclose(np.array(other.weights()) - before, 2 * (np.array(run.weights()) - before), rtol=1e-5)


def test_what_was_read_is_no_view(harness):
    run, weights = run_of(harness)
    run.feed(*FEEDS[0])
    state = state_of(run, weights)
    before = {name: np.array(value) for name, value in state.items()}
    run.feed(*FEEDS[1])
    for name, value in state.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_that_of_master_weights_goes_on_bit_for_bit(harness, policy):
    options = {"policy": harness.pure_policies[policy], "master_weights": True}
    run, _ = run_of(harness, **options)
    run.feed(*FEEDS[0])
    other = going_on(harness, run, **options)
    for feed in FEEDS[1:]:
        run.feed(*feed)
        other.feed(*feed)
    assert masters(other) == masters(run)
    assert other.weights() == run.weights()


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_that_of_16_bit_weights_goes_on_bit_for_bit(harness, policy):
    """Moments of 16 bits too, where the framework keeps them so."""
    options = {"policy": harness.pure_policies[policy], "loss_scale": "none"}
    run, _ = run_of(harness, **options)
    run.feed(*FEEDS[0])
    other = going_on(harness, run, **options)
    for feed in FEEDS[1:]:
        run.feed(*feed)
        other.feed(*feed)
    assert other.weights() == run.weights()


@pytest.mark.needs("weight_updates")
@pytest.mark.parametrize("update", ["kahan", "stochastic"])
def test_that_of_rounded_weights_goes_on_bit_for_bit(harness, update):
    """Their moments are float32, which they stay: of thirds, 16 bits would lose most."""
    policy = ua.Policy.parse(str(harness.pure_policies["bfloat16"])).replace(update=update)
    options = {"policy": policy, "loss_scale": "none", "lr": 2.0**-6}
    run, _ = run_of(harness, **options)
    for feed in FEEDS[:2]:
        run.feed(*[value / 3 for value in feed])
    other = going_on(harness, run, **options)
    other.amp.load_state_dict(run.amp.state_dict())  # how many updates were rounded
    for feed in FEEDS * 4:
        for each in (run, other):
            each.feed(*[value / 3 for value in feed])
        assert masters(other) == masters(run)
        assert other.weights() == run.weights()


@pytest.mark.needs("state_dtype")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_that_of_moments_in_fewer_bits_goes_on_bit_for_bit(harness, dtype, kind):
    policy = ua.Policy(state_dtype=dtype, update_seed=3)

    def make(model):
        with harness.left_to_prepare():
            return harness.adam([model], 2.0**-6) if kind == "adam" else harness.sgd([model], 2.0**-6, 0.5)

    options = {"values": (1.0, -1.0), "policy": policy, "make": make, "loss_scale": "none"}
    try:
        run, other = probe_run(harness, **options), probe_run(harness, **options)
    except ua.UnsupportedError as refusal:
        pytest.skip(f"refused: {refusal}")
    for feed in FEEDS[:2]:
        run.feed(*[value / 3 for value in feed])
    state, weights = state_of(run, run.amp.backend.weights), other.amp.backend.weights
    weights.check_optimizer(other.optimizer, [other.model], state)
    other.amp.load_master_weights(other.model, run.amp.master_weights(run.model))
    weights.write_optimizer(other.optimizer, [other.model], state)
    other.amp.load_state_dict(run.amp.state_dict())
    for feed in FEEDS * 3:
        for each in (run, other):
            each.feed(*[value / 3 for value in feed])
        assert masters(other) == masters(run)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_that_of_sgd_goes_on_bit_for_bit(harness, momentum):
    """It is known where Adam's is, also if it holds next to nothing."""
    run, _ = run_of(harness)
    run.feed(*FEEDS[0])
    state_of(run, run.amp.backend.weights)
    options = {"values": (1.0, -1.0), "make": lambda model: harness.sgd([model], 2.0**-4, momentum), "loss_scale": 4.0}
    run, other = probe_run(harness, **options), probe_run(harness, **options)
    run.feed(*FEEDS[0])
    state = run.amp.backend.weights.read_optimizer(run.optimizer, [run.model])
    assert state is not None
    weights = other.amp.backend.weights
    weights.check_optimizer(other.optimizer, [other.model], state)
    other.amp.load_master_weights(other.model, run.amp.master_weights(run.model))
    weights.write_optimizer(other.optimizer, [other.model], state)
    for feed in FEEDS[1:]:
        run.feed(*feed)
        other.feed(*feed)
        assert other.weights() == run.weights()


def test_that_of_another_model_is_refused(harness):
    run, weights = run_of(harness)
    run.feed(*FEEDS[0])
    state = state_of(run, weights)
    other = probe_run(harness, values=(1.0,), optimizer="adam", loss_scale=4.0)
    with pytest.raises(ua.CheckpointError):
        other.amp.backend.weights.check_optimizer(other.optimizer, [other.model], state)


@pytest.mark.parametrize("size", [2, 4])
def test_that_of_other_shapes_is_refused(harness, size):
    """Of a model with as many parameters, one of which is smaller or larger; nothing changes."""
    runs = []
    for outputs in (3, size):
        amp = session(harness, loss_scale=4.0)
        model = harness.mlp([(np.ones((2, outputs), np.float32), np.ones(outputs, np.float32))])
        model, optimizer = amp.prepare(model, harness.adam([model], 0.1))
        x, y = (amp.to_native(np.ones((1, width), np.float32)) for width in (2, outputs))
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)  # noqa: B023
        amp.step(optimizer)
        runs.append((amp.backend.weights, optimizer, [model]))
    (weights, *given), (other, *taken) = runs
    state = weights.read_optimizer(*given)
    if state is None:
        pytest.skip("read_optimizer returns None: this optimizer's state is not known")
    with pytest.raises(ua.CheckpointError):
        other.check_optimizer(*taken, state)


def test_a_schedule_goes_on(harness, form):
    """One that the optimizer holds: a skipped step leaves it where it is, and a saved state continues it."""
    rates = (0.5, 0.25, 0.125, 0.0625)
    options = {"make": lambda model: harness.scheduled_sgd(model, rates), "loss_scale": 4.0}
    run = probe_run(harness, form, **options)
    for feed in (1.0, math.inf, 1.0):
        run.feed(feed)
    assert run.weights() == [0.25]
    weights, other = run.amp.backend.weights, probe_run(harness, form, **options)
    state = state_of(run, weights)
    other.amp.load_master_weights(other.model, run.amp.master_weights(run.model))
    other.amp.backend.weights.write_optimizer(other.optimizer, [other.model], state)
    for each in (run, other):
        each.feed(1.0)
        assert each.weights() == [0.125]
        each.feed(math.nan)
        each.feed(1.0)
        assert each.weights() == [0.0625]
