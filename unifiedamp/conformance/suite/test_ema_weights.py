"""What an average is of, what interrupts it, and how it ends."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import probe_run, session
from unifiedamp.conformance.suite.averaged import INF, NAN, SCALE, Averaged, Stopped, bits

pytestmark = pytest.mark.needs("ema")


@pytest.mark.needs("float32_weights")
def test_statistics_are_the_models_own(harness):
    amp = session(harness, loss_scale=SCALE)
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)
    ema = amp.ema(model, 0.5)
    rng, oracle = np.random.default_rng(0), AverageOracle(0.5)
    labels = amp.to_native(np.arange(4))
    batches = [harness.image_batch(rng.normal(size=(4, 8, 8, 1)).astype(np.float32) + 2) for _ in range(3)]
    with amp.inference(model), amp.autocast():
        model(amp.to_native(batches[0]))  # shapes may follow from it
    trained = set(harness.parameters(model))
    for batch in batches:
        before, x = amp.master_weights(model), amp.to_native(batch)
        amp.backward(lambda x=x: harness.cross_entropy(model(x), labels), optimizer)
        assert amp.step(optimizer).applied
        after = amp.master_weights(model)
        oracle.step({name: before[name] for name in trained}, {name: after[name] for name in trained})
    own, average = amp.master_weights(model), ema.weights()
    assert set(average) == set(own)
    oracle.check(average)
    statistics = set(own) - trained
    assert len(statistics) == 2
    assert all(np.array_equal(own[name], average[name]) for name in statistics)
    with ema.swapped():
        inside = amp.master_weights(model)
    assert bits(inside) == bits(average)
    assert bits(amp.master_weights(model)) == bits(own)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_an_average_that_was_read_is_no_view(harness, policy):
    """It stays while the average moves, and what the loop does to it is its own."""
    averaged = Averaged(harness, policy=policy)
    averaged.feed(1.0)
    first = averaged.ema.weights()
    before = bits(first)
    averaged.feed(2.0)
    assert bits(first) == before != bits(averaged.ema.weights())
    for value in averaged.ema.weights().values():
        value += 1.0
    averaged.check()
    averaged.feed(3.0)
    averaged.check()


TINY = 2.0**-13


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_an_average_is_of_the_master_weights(harness, form, policy):
    """Each step takes ``TINY`` away, which 16 bits round away; the weights that are swapped back are the masters."""
    averaged = Averaged(
        harness, form, 0.5, values=(1.0,), policy=harness.pure_policies[policy], lr=TINY, master_weights=True
    )
    averaged.weights = lambda: averaged.amp.master_weights(averaged.model)
    averaged.run.feed, feed = lambda value, _: feed(value), averaged.run.feed
    for value in (1.0, 1.0, INF, 1.0, 1.0):
        averaged.feed(value)
        averaged.oracle.check(averaged.ema.weights(), rtol=2.0**-22)
        own, low = bits(averaged.weights()), averaged.run.weights()
        with averaged.ema.swapped():
            assert bits(averaged.weights()) == bits(averaged.ema.weights())
        assert (bits(averaged.weights()), averaged.run.weights()) == (own, low)


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_a_model_with_masters_answers_by_their_average(harness, form, policy):
    """Its own 16-bit weights are swapped too, not the masters alone."""
    options = {"policy": harness.pure_policies[policy], "lr": 0.25, "master_weights": True}
    averaged = Averaged(harness, form, 0.75, values=(1.0, 4.0), **options)
    for feed in (1.0, -2.0, 1.5):
        averaged.feed(feed)
    own = averaged.run.weights()
    average = [float(np.ravel(value)[0]) for value in averaged.ema.weights().values()]
    with averaged.ema.swapped():
        assert averaged.run.weights() == pytest.approx(average, rel=2.0**-8)
        assert averaged.run.weights() != pytest.approx(own, rel=2.0**-4)
    assert averaged.run.weights() == own


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_an_average_of_16_bit_weights_is_float32(harness, form, policy):
    averaged = Averaged(harness, form, 0.75, policy=harness.pure_policies[policy], lr=0.25, loss_scale="none")
    for feed in (1.0, 0.5, 1.0):
        averaged.feed(feed)
        averaged.check()
    before = bits(averaged.weights())
    with averaged.ema.swapped():
        for name, value in averaged.weights().items():
            np.testing.assert_allclose(value, averaged.oracle.values[name], rtol=2.0**-8)
        averaged.check()
    assert bits(averaged.weights()) == before


def test_an_average_of_parameters_added_later(harness):
    amp = session(harness, loss_scale=SCALE)
    with amp.scope():
        model, late = harness.probe([1.0]), harness.probe([2.0])
        optimizer = harness.sgd([model], 0.5)
    model, optimizer = amp.prepare(model, optimizer)
    first = amp.ema(model, 0.5)
    late = amp.prepare(late)
    with pytest.raises(ua.PrepareError, match=r"amp\.ema"):
        amp.ema(late, 0.5)
    harness.extend(optimizer, late)
    second = amp.ema(late, 0.5)
    oracles = AverageOracle(0.5), AverageOracle(0.5)
    x = amp.to_native(np.float32([1.0]))
    for _ in range(3):
        before = [harness.parameters(each) for each in (model, late)]
        amp.backward(lambda: model(x) + late(x), optimizer)
        assert amp.step(optimizer).applied
        for each, ema, oracle, old in zip((model, late), (first, second), oracles, before, strict=True):
            oracle.step(old, harness.parameters(each))
            oracle.check(ema.weights())


def test_an_interrupted_update_does_not_move_an_average(harness):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    before = bits(averaged.ema.weights())
    context = harness.interrupted_update(averaged.run.optimizer, Stopped())
    if context is None:
        pytest.skip("the framework's updates change nothing in place")
    with context, pytest.raises(Stopped):
        averaged.feed(1.0)
    assert bits(averaged.ema.weights()) == before
    assert averaged.ema.updates == 1
    averaged.amp.discard_step(averaged.run.optimizer)
    averaged.feed(2.0)
    averaged.check()


def test_an_exception_between_calls_does_not_move_an_average(harness):
    averaged = Averaged(harness, clip=lambda *_: 1 / averaged.divisor)
    averaged.divisor = 1
    averaged.feed(1.0)
    before, averaged.divisor = bits(averaged.ema.weights()), 0
    with pytest.raises(ZeroDivisionError):
        averaged.feed(1.0)
    assert bits(averaged.ema.weights()) == before
    averaged.amp.discard_step(averaged.run.optimizer)
    averaged.divisor = 1
    averaged.feed(2.0)
    averaged.check()


def test_a_closed_session_keeps_what_it_had(harness):
    averaged = Averaged(harness)
    for feed in (1.0, 2.0):
        averaged.feed(feed)
    state, average = averaged.amp.state_dict(), bits(averaged.ema.weights())
    averaged.amp.close()
    assert averaged.amp.state_dict() == state
    assert bits(averaged.ema.weights()) == average
    assert averaged.ema.updates == 2
    with pytest.raises(ua.StepOrderError, match="closed"), averaged.ema.swapped():
        pass
    with pytest.raises(ua.StepOrderError, match="closed"):
        averaged.ema.load_weights({})
    with pytest.raises(ua.StepOrderError, match="closed"):
        averaged.amp.ema(averaged.model)


def test_an_average_that_no_step_has_moved_outlives_its_session(harness):
    """It is the weights as they were when the session was closed."""
    averaged = Averaged(harness)
    averaged.feed(INF)
    expected = {name: value.astype(np.float32) for name, value in averaged.weights().items()}
    averaged.amp.close()
    assert averaged.ema.updates == 0
    found = averaged.ema.weights()
    assert {name: found[name].tolist() for name in expected} == {n: v.tolist() for n, v in expected.items()}


@pytest.mark.parametrize("feeds", [(), (1.0, 2.0)], ids=["unmoved", "moved"])
def test_a_closed_average_rests_while_the_model_trains(harness, feeds):
    """Under another session."""
    averaged = Averaged(harness)
    for feed in feeds:
        averaged.feed(feed)
    averaged.amp.close()
    before, updates = bits(averaged.ema.weights()), averaged.ema.updates
    amp = session(harness, loss_scale=SCALE)
    model, optimizer = amp.prepare(averaged.model, harness.sgd([averaged.model], 0.5))
    weights, x = averaged.weights(), amp.to_native(np.float32([1.0, 2.0]))
    for _ in range(2):
        amp.backward(lambda: model(x), optimizer)
        assert amp.step(optimizer).applied
        assert all((value != weights[name]).all() for name, value in averaged.weights().items())
        assert (bits(averaged.ema.weights()), averaged.ema.updates) == (before, updates)


def test_closing_restores_weights_that_are_swapped_out(harness):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    before = bits(averaged.weights())
    with averaged.ema.swapped():
        assert bits(averaged.weights()) != before
        averaged.amp.close()
        assert bits(averaged.weights()) == before
    assert bits(averaged.weights()) == before


@pytest.mark.parametrize("decay", [1.0, -0.1, 1.5, NAN, "0.9", None, True])
def test_a_wrong_decay(harness, decay):
    run = probe_run(harness)
    with pytest.raises(ua.ConfigError, match=r"amp\.ema: decay must be at least 0 and below 1"):
        run.amp.ema(run.model, decay)


def test_what_is_no_model_or_not_trained(harness):
    run = probe_run(harness)
    with pytest.raises(ua.WrongObjectError, match=r"amp\.ema: expected a model"):
        run.amp.ema(run.optimizer)
    with run.amp.scope():
        other = harness.probe([1.0])
    with pytest.raises(ua.PrepareError, match=r"amp\.ema"):
        run.amp.ema(other)


@pytest.mark.needs("float32_weights")
def test_a_layer_that_is_frozen_at_first_is_averaged(harness):
    """Its average is its value while it is frozen, and moves once it trains."""
    amp = session(harness, loss_scale=SCALE)
    model = harness.mlp([(np.float32([[weight]]), np.float32([0.5])) for weight in (1.0, 0.75)])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.01))
    harness.set_trainable(model, "layer0", False)
    ema, oracle = amp.ema(model, 0.5), AverageOracle(0.5)
    x, y = (amp.to_native(np.float32([[value]])) for value in (1.5, 0.0))
    for trained in (False, False, True, True):
        harness.set_trainable(model, "layer0", trained)
        before = amp.master_weights(model)
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        assert amp.step(optimizer).applied
        oracle.step(before, amp.master_weights(model))
        oracle.check(ema.weights())
