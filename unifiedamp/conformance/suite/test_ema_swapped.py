"""A model is evaluated by its average, trains on by its weights, and nothing changes them meanwhile."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import session
from unifiedamp.conformance.suite.averaged import FEEDS, SCALE, Averaged, Pair, Stopped, bits

pytestmark = pytest.mark.needs("ema")


def answer(averaged, *x):
    with averaged.amp.inference(averaged.model):
        output = averaged.model(averaged.amp.to_native(np.float32(x)))
    return float(np.ravel(averaged.amp.to_numpy(output))[0])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_model_answers_by_its_average_inside_and_by_its_weights_after(harness, form, policy):
    averaged = Averaged(harness, form, policy=policy)
    for feed in FEEDS:
        averaged.feed(feed)
    before = bits(averaged.weights())
    expected = [float(np.ravel(value)[0]) for value in averaged.oracle.values.values()]
    for _ in range(2):
        own = answer(averaged, 1.0, 1.0)
        with averaged.ema.swapped() as model:
            assert model is averaged.model
            for name, value in averaged.weights().items():
                np.testing.assert_allclose(value, averaged.oracle.values[name], rtol=2e-6)
            assert answer(averaged, 1.0, 1.0) == pytest.approx(sum(expected), rel=1e-5 if policy == "float32" else 0.02)
            averaged.check()
        assert bits(averaged.weights()) == before
        assert answer(averaged, 1.0, 1.0) == own
        averaged.check()


def test_inside_one_region_the_model_answers_by_what_it_has(harness):
    """What was cast of the weights before they are exchanged is not what answers after."""
    amp = session(harness, policy="mixed_bfloat16", loss_scale="none")
    with amp.scope():
        model = harness.mlp([(np.full((1, 1), 4.0, np.float32), np.zeros(1, np.float32))])
        optimizer = harness.sgd([model], 0.125)
    model, optimizer = amp.prepare(model, optimizer)
    ema, one, zero = amp.ema(model, 0.5), *(amp.to_native(np.float32([[value]])) for value in (1.0, 0.0))
    amp.backward(lambda: harness.mean_square(model(one), zero), optimizer)
    amp.step(optimizer)

    def answer():
        return float(np.ravel(amp.to_numpy(model(one)))[0])

    expected = sum(float(np.ravel(each)[0]) for each in ema.weights().values())
    with amp.autocast():
        own = answer()
        with ema.swapped():
            assert answer() == pytest.approx(expected, rel=2.0**-7)
        assert answer() == own != pytest.approx(expected, rel=2.0**-5)


@pytest.mark.needs("float32_weights")
@pytest.mark.parametrize("read", ["at once", "swapped", "closed"])
def test_an_average_that_no_step_has_moved_is_the_present_weights(harness, form, read):
    """Those that were loaded after it was made; also where it is first read when it is swapped in or after closing."""
    averaged = Averaged(harness, form)
    with averaged.ema.swapped():
        averaged.check()
    loaded = {name: value + 1 for name, value in averaged.amp.master_weights(averaged.model).items()}
    averaged.amp.load_master_weights(averaged.model, loaded)
    if read == "at once":
        assert bits(averaged.ema.weights()) == bits(loaded)
        return
    if read == "swapped":
        with averaged.ema.swapped():
            assert [array.tolist() for array in averaged.weights().values()] == [[2.0], [-2.0]]
        return
    averaged.amp.close()
    assert bits(averaged.ema.weights()) == bits(loaded)


def test_training_goes_on_as_if_nothing_had_been_swapped(harness, form):
    straight, swapping = Averaged(harness, form), Averaged(harness, form)
    for feed in FEEDS:
        straight.feed(feed)
        swapping.feed(feed)
        with swapping.ema.swapped():
            answer(swapping, 1.0, 2.0)
        assert bits(swapping.weights()) == bits(straight.weights())
        assert bits(swapping.ema.weights()) == bits(straight.ema.weights())


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt, SystemExit])
def test_an_exception_inside_restores_the_weights(harness, error):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    before = bits(averaged.weights())
    with pytest.raises(error), averaged.ema.swapped():
        assert bits(averaged.weights()) != before
        raise error
    assert bits(averaged.weights()) == before
    averaged.feed(2.0)
    averaged.check()


CALLS = {
    "backward": lambda each: each.amp.backward(lambda: None, each.run.optimizer),
    "unscale": lambda each: each.amp.unscale(each.run.optimizer),
    "clip_grad_norm": lambda each: each.amp.clip_grad_norm(each.run.optimizer, 1.0),
    "clip_grad_value": lambda each: each.amp.clip_grad_value(each.run.optimizer, 1.0),
    "skip_if": lambda each: each.amp.skip_if(True),
    "step": lambda each: each.amp.step(each.run.optimizer),
    "discard_step": lambda each: each.amp.discard_step(each.run.optimizer),
    "load_state_dict": lambda each: each.amp.load_state_dict(each.amp.state_dict()),
    "load_weights": lambda each: each.ema.load_weights(each.ema.weights()),
    "ema": lambda each: each.amp.ema(each.model),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_would_change_weights_is_refused_inside(harness, call):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    before, average = bits(averaged.weights()), bits(averaged.ema.weights())
    with averaged.ema.swapped(), pytest.raises(ua.StepOrderError, match="swapped in"):
        CALLS[call](averaged)
    assert (bits(averaged.weights()), bits(averaged.ema.weights())) == (before, average)
    averaged.feed(2.0)
    averaged.check()


def test_a_native_step_is_refused_inside(harness):
    """It would change the average, which takes the place of the weights."""
    averaged = Averaged(harness)
    averaged.feed(1.0)
    calls = harness.native_calls(averaged.run.optimizer)
    with averaged.ema.swapped():
        average = bits(averaged.weights())
        for name, call in calls.items():
            if name.startswith("step"):
                with pytest.raises(ua.StepOrderError, match="swapped in"):
                    call()
        assert bits(averaged.weights()) == average
    averaged.feed(2.0)
    averaged.check()


@pytest.mark.needs("several_optimizers")
def test_a_native_step_of_any_optimizer_is_refused_inside(harness):
    """Of a model whose layers have an optimizer each."""
    amp = session(harness, loss_scale=SCALE)
    layer = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    with amp.scope():
        model = harness.mlp([layer, layer])
        optimizers = [harness.layer_sgd(model, f"layer{index}", 0.5) for index in range(2)]
    model, *optimizers = amp.prepare(model, *optimizers)
    ema = amp.ema(model, 0.5)
    x = amp.to_native(np.float32([[1.0, 2.0]]))
    amp.backward(lambda: harness.mean_square(model(x), 0 * x), optimizers)
    for each in optimizers:
        assert amp.step(each).applied
    before = bits(harness.parameters(model))
    with ema.swapped():
        average = bits(harness.parameters(model))
        for call in [
            call for each in optimizers for name, call in harness.native_calls(each).items() if "step" in name
        ]:
            with pytest.raises(ua.StepOrderError, match="swapped in"):
                call()
        assert bits(harness.parameters(model)) == average != before
    assert bits(harness.parameters(model)) == before


@pytest.mark.needs("float32_weights")
def test_weights_are_not_set_inside(harness):
    averaged = Averaged(harness)
    with averaged.ema.swapped(), pytest.raises(ua.StepOrderError, match="swapped in"):
        averaged.amp.load_master_weights(averaged.model, averaged.amp.master_weights(averaged.model))


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_whole_step_is_refused_inside(harness, form, count):
    """Also one that runs no Python."""
    averaged = Averaged(harness, form)
    for _ in range(count):
        averaged.feed(1.0)
    before, average = bits(averaged.weights()), bits(averaged.ema.weights())
    with averaged.ema.swapped():
        for _ in range(2):
            with pytest.raises(ua.StepOrderError, match="swapped in"):
                averaged.run.step(averaged.amp.to_native(np.float32([1.0, 1.0])))
    assert (bits(averaged.weights()), bits(averaged.ema.weights())) == (before, average)
    averaged.feed(2.0)
    averaged.check()


def test_averages_of_one_model_are_swapped_in_one_at_a_time(harness):
    averaged = Averaged(harness)
    other = averaged.amp.ema(averaged.model, 0.9)
    averaged.feed(1.0)
    before = bits(averaged.weights())
    with averaged.ema.swapped():
        for each in (averaged.ema, other):
            with pytest.raises(ua.StepOrderError, match="swapped in already"), each.swapped():
                pass
        averaged.check()
    assert bits(averaged.weights()) == before
    with other.swapped():
        assert bits(averaged.weights()) != before
    assert bits(averaged.weights()) == before


@pytest.mark.needs("several_optimizers")
def test_averages_of_two_models_are_swapped_in_together(harness):
    pair = Pair(harness, "eager")
    pair.train(0, 1.0)
    pair.train(1, 1.0)
    before = [bits(harness.parameters(model)) for model in pair.models]
    first, second = (ema.swapped() for ema in pair.emas)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert bits(harness.parameters(pair.models[0])) == before[0]
    assert bits(harness.parameters(pair.models[1])) != before[1]
    with pytest.raises(ua.StepOrderError, match="swapped in"):
        pair.train(0, 1.0)
    second.__exit__(None, None, None)
    assert [bits(harness.parameters(model)) for model in pair.models] == before
    pair.train(0, 1.0)
