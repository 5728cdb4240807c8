"""Averages of weights move with applied steps alone, are swapped in for evaluation, and give everything back."""

import json
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import compiled, probe_run, session

pytestmark = pytest.mark.needs("ema")

INF, NAN = math.inf, math.nan
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
FEEDS = (1.0, -2.0, INF, 0.5, NAN, NAN, 3.0, -1.0, 0.25, INF, 2.0)


class Averaged:
    """A probe run with an average, and what the average must be."""

    def __init__(self, harness, form="eager", decay=0.75, warmup=False, after=(), **options):
        self.run = probe_run(harness, form, **{"values": (1.0, -3.0), "loss_scale": SCALE} | options)
        self.amp, self.model = self.run.amp, self.run.model
        for feed in after:
            self.run.feed(feed, feed)
        self.ema = self.amp.ema(self.model, decay, warmup=warmup)
        self.oracle = AverageOracle(decay, warmup)

    def weights(self):
        return self.run.harness.parameters(self.model)

    def feed(self, value, applies=None):
        """One step; it is applied where the weights may follow the gradient."""
        before = self.weights()
        self.run.feed(value, 2 * value)
        if math.isfinite(value) if applies is None else applies:
            self.oracle.step(before, self.weights())

    def check(self):
        self.oracle.check(self.ema.weights())
        assert self.ema.updates == self.oracle.updates


def bits(arrays):
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


# -- moving ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [False, True], ids=["constant", "warmup"])
@pytest.mark.parametrize("decay", [0.0, 0.25, 0.75, 0.999])
def test_an_average_moves_with_applied_steps(harness, form, decay, warmup):
    averaged = Averaged(harness, form, decay, warmup)
    for feed in FEEDS:
        averaged.feed(feed)
        averaged.check()
    assert averaged.ema.updates == sum(map(math.isfinite, FEEDS))


@pytest.mark.needs("loss_scaling")
def test_a_skipped_step_leaves_an_average_bit_for_bit(harness, form):
    averaged = Averaged(harness, form)
    for feed in (1.0, 2.0, 4.0, 0.5):
        averaged.feed(feed)
    before = bits(averaged.ema.weights())
    for feed in (INF, NAN, INF, -INF, NAN):
        averaged.feed(feed)
        assert bits(averaged.ema.weights()) == before
    assert (averaged.ema.updates, averaged.amp.skipped_steps) == (4, 5)


def test_a_first_step_that_is_skipped_starts_nothing(harness, form):
    averaged = Averaged(harness, form)
    for feed in (INF, 1.0, 2.0):
        averaged.feed(feed)
        averaged.check()


@pytest.mark.parametrize("warmup", [False, True], ids=["constant", "warmup"])
def test_without_loss_scaling_every_step_counts(harness, form, warmup):
    averaged = Averaged(harness, form, 0.75, warmup, loss_scale="none")
    for feed in (1.0, -2.0, 0.5, 3.0, 2.0, 0.25, 4.0):
        averaged.feed(feed)
        averaged.check()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_an_average_is_of_the_float32_weights(harness, form, policy):
    averaged = Averaged(harness, form, 0.5, policy=policy, lr=2.0**-12)
    for feed in (1.0, 2.0, 1.0, 0.5, 1.0):
        averaged.feed(feed)
    averaged.oracle.check(averaged.ema.weights(), rtol=2.0**-22)


@pytest.mark.needs("accumulation")
def test_an_average_moves_once_a_window(harness, form):
    averaged = Averaged(harness, form, accumulate_steps=3)
    for window in ((1.0, 2.0, 0.5), (1.0, INF, 1.0), (4.0, 1.0, 1.0), (2.0, 0.0, 1.0)):
        for place, feed in enumerate(window):
            averaged.feed(feed, applies=place == 2 and all(map(math.isfinite, window)))
            averaged.check()
    assert averaged.ema.updates == 3


def test_a_discarded_step_leaves_an_average(harness):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    before = bits(averaged.ema.weights())
    x = averaged.amp.to_native(np.float32([1.0, 1.0]))
    averaged.amp.backward(lambda: averaged.model(x), averaged.run.optimizer)
    averaged.amp.discard_step(averaged.run.optimizer)
    assert bits(averaged.ema.weights()) == before
    averaged.feed(2.0)
    averaged.check()


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_an_average_of_a_model_that_trains_already(harness, form, count):
    """Steps that were traced or captured before it move it too."""
    averaged = Averaged(harness, form, after=[1.0] * count)
    for feed in FEEDS:
        averaged.feed(feed)
        averaged.check()


def test_two_averages_of_one_model(harness, form):
    averaged = Averaged(harness, form, 0.5)
    other, expected = averaged.amp.ema(averaged.model, 0.9, warmup=True), AverageOracle(0.9, True)
    for feed in FEEDS:
        before = averaged.weights()
        averaged.feed(feed)
        if math.isfinite(feed):
            expected.step(before, averaged.weights())
        averaged.check()
        expected.check(other.weights())


@pytest.mark.needs("float32_weights")
def test_weights_set_before_the_first_step_are_where_it_begins(harness, form):
    averaged = Averaged(harness, form)
    averaged.amp.load_master_weights(
        averaged.model, {name: array + 5 for name, array in averaged.amp.master_weights(averaged.model).items()}
    )
    assert bits(averaged.ema.weights()) == bits(averaged.amp.master_weights(averaged.model))
    for feed in (1.0, 2.0, INF, 1.0):
        averaged.feed(feed)
        averaged.check()


def test_an_unmoved_average_is_the_weights(harness):
    averaged = Averaged(harness)
    assert averaged.ema.updates == 0
    for name, array in averaged.weights().items():
        np.testing.assert_array_equal(averaged.ema.weights()[name], array.astype(np.float32))


# -- several optimizers ------------------------------------------------------------------------------------------------


class Pair:
    """Two probe models with averages, an optimizer each."""

    def __init__(self, harness, form):
        self.harness, self.amp = harness, session(harness, form, loss_scale=SCALE)
        with self.amp.scope():
            models = [harness.probe([1.0]), harness.probe([2.0])]
            optimizers = [harness.sgd([model], 0.5) for model in models]
        prepared = self.amp.prepare(*models, *optimizers)
        self.models, self.optimizers = prepared[:2], prepared[2:]
        self.emas = [self.amp.ema(model, 0.5) for model in self.models]
        self.oracles = [AverageOracle(0.5), AverageOracle(0.5)]
        self.steps = [compiled(self.amp, form, self.trainer(index)) for index in range(2)]

    def trainer(self, index):
        def step(x):
            self.amp.backward(lambda: self.models[index](x), self.optimizers[index])
            self.amp.step(self.optimizers[index])

        return step

    def train(self, index, gradient):
        before = self.harness.parameters(self.models[index])
        self.steps[index](self.amp.to_native(np.float32([gradient])))
        if math.isfinite(gradient):
            self.oracles[index].step(before, self.harness.parameters(self.models[index]))
        for ema, oracle in zip(self.emas, self.oracles, strict=True):
            oracle.check(ema.weights())
            assert ema.updates == oracle.updates


@pytest.mark.needs("several_optimizers")
def test_each_average_moves_with_its_own_optimizer(harness, form):
    """A generator and a discriminator that trains more often; each skips by itself."""
    pair = Pair(harness, form)
    for gradient in (1.0, INF, 0.5):
        pair.train(1, gradient)
        pair.train(1, 2 * gradient)
        pair.train(0, 1.0 if gradient == 0.5 else gradient)
    for _ in range(3):
        pair.train(0, 1.0)
        pair.train(1, NAN)
    assert [ema.updates for ema in pair.emas] == [5, 4]


def test_one_optimizer_of_two_models(harness, form):
    """The average of one of them."""
    amp = session(harness, form, loss_scale=SCALE)
    with amp.scope():
        first, second = harness.probe([1.0]), harness.probe([2.0])
        optimizer = harness.sgd([first, second], 0.5)
    first, second, optimizer = amp.prepare(first, second, optimizer)
    ema, oracle = amp.ema(second, 0.5), AverageOracle(0.5)

    def step(x):
        amp.backward(lambda: first(x) + second(x), optimizer)
        amp.step(optimizer)

    step = compiled(amp, form, step)
    for gradient in (1.0, 2.0, INF, 4.0, 1.0):
        before = harness.parameters(second)
        step(amp.to_native(np.float32([gradient])))
        if math.isfinite(gradient):
            oracle.step(before, harness.parameters(second))
        found = ema.weights()
        oracle.check({name: found[name] for name in oracle.values})


# -- evaluation --------------------------------------------------------------------------------------------------------


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


def test_training_goes_on_as_if_nothing_had_been_swapped(harness, form):
    straight, swapping = Averaged(harness, form), Averaged(harness, form)
    for feed in FEEDS:
        straight.feed(feed)
        swapping.feed(feed)
        with swapping.ema.swapped():
            answer(swapping, 1.0, 2.0)
        assert bits(swapping.weights()) == bits(straight.weights())
        assert bits(swapping.ema.weights()) == bits(straight.ema.weights())


class Stopped(Exception):
    """Raised by the tests."""


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


# -- saving ------------------------------------------------------------------------------------------------------------


def resumed(harness, form, state, weights, **options):
    """A new run that goes on from a state, with the weights of the old one."""
    values = [float(np.ravel(value)[0]) for value in weights.values()]
    second = Averaged(harness, form, values=tuple(values), **options)
    second.amp.load_state_dict(json.loads(json.dumps(state)))
    return second


@pytest.mark.parametrize("warmup", [False, True], ids=["constant", "warmup"])
def test_a_saved_average_goes_on_bit_for_bit(harness, form, warmup):
    straight, first = Averaged(harness, form, 0.9, warmup), Averaged(harness, form, 0.9, warmup)
    for index, feed in enumerate(FEEDS):
        straight.feed(feed)
        first.feed(feed)
        if index in (0, 2, 6):
            first = resumed(harness, form, first.amp.state_dict(), first.weights(), decay=0.9, warmup=warmup)
        assert bits(first.ema.weights()) == bits(straight.ema.weights())
        assert first.ema.updates == straight.ema.updates


def test_an_average_is_taken_over_from_any_backend(harness, peer):
    from unifiedamp.conformance.harness import load_harness

    other = load_harness(peer)
    if not other.capabilities().feature("ema"):
        pytest.skip(f"{peer} declares no ema")
    first = Averaged(other, decay=0.9, warmup=True)
    for feed in FEEDS[:5]:
        first.feed(feed)
    second = resumed(harness, "eager", first.amp.state_dict(), first.weights(), decay=0.9, warmup=True)
    second.oracle = first.oracle
    for feed in FEEDS[5:]:
        second.check()
        second.feed(feed)


def test_a_checkpoint_file_holds_an_average(harness, tmp_path):
    from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint

    averaged = Averaged(harness)
    averaged.feed(1.0)
    save_checkpoint(tmp_path / "c.npz", {"epoch": 3}, {"mine": np.arange(3)}, averaged.amp)
    with np.load(tmp_path / "c.npz") as members:
        for name, array in averaged.ema.weights().items():
            np.testing.assert_array_equal(members[f"amp.ema.0.{name}"], array)
    read = load_checkpoint(tmp_path / "c.npz")
    assert read.meta == {"epoch": 3, "amp": averaged.amp.state_dict()}
    assert list(read.arrays) == ["mine"]


def test_a_state_saved_while_swapped_in_holds_the_average(harness):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    outside = averaged.amp.state_dict()
    with averaged.ema.swapped():
        assert averaged.amp.state_dict() == outside


def test_a_state_without_an_average_starts_anew(harness, form):
    averaged = Averaged(harness, form)
    bare = probe_run(harness, loss_scale=SCALE).amp.state_dict()
    assert "ema" not in bare
    for feed in (1.0, 2.0):
        averaged.feed(feed)
    with pytest.warns(ua.StateWarning, match="starts anew"):
        averaged.amp.load_state_dict(bare)
    averaged.oracle = AverageOracle(averaged.ema.decay)
    assert averaged.ema.updates == 0
    for feed in FEEDS:
        averaged.feed(feed)
        averaged.check()


def test_a_state_loaded_before_the_average_is_made(harness, form):
    first = Averaged(harness, form)
    for feed in FEEDS[:4]:
        first.feed(feed)
    values = [float(np.ravel(value)[0]) for value in first.weights().values()]
    run = probe_run(harness, form, values=tuple(values), loss_scale=SCALE)
    run.amp.load_state_dict(first.amp.state_dict())
    ema = run.amp.ema(run.model, 0.75)
    assert bits(ema.weights()) == bits(first.ema.weights())
    assert ema.updates == first.ema.updates


def test_an_average_that_missed_steps_is_not_taken_over(harness):
    first = Averaged(harness)
    first.feed(1.0)
    run = probe_run(harness, values=(1.0, -3.0), loss_scale=SCALE)
    run.amp.load_state_dict(first.amp.state_dict())
    run.feed(1.0, 1.0)
    with pytest.warns(ua.StateWarning, match="starts anew"):
        ema = run.amp.ema(run.model, 0.75)
    assert ema.updates == 0


def test_another_decay_is_told(harness):
    first, second = Averaged(harness), Averaged(harness, decay=0.5)
    with pytest.warns(ua.StateWarning, match=r"decay was 0\.75 when saved; this session's 0\.5 is used"):
        second.amp.load_state_dict(first.amp.state_dict())


BROKEN = {
    "name": lambda entry: entry["weights"].update(w7=entry["weights"].pop("w1")),
    "missing": lambda entry: entry["weights"].pop("w1"),
    "shape": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "shape": [1, 1]}),
    "length": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "shape": [2]}),
    "text": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "base64": "?"}),
    "dtype": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "dtype": "object"}),
    "array": lambda entry: entry["weights"].update(w1=3),
    "updates": lambda entry: entry["updates"].append(1),
    "count": lambda entry: entry.update(updates=[-1]),
    "decay": lambda entry: entry.update(decay=1.5),
    "warmup": lambda entry: entry.update(warmup="yes"),
    "truncated": lambda entry: entry.pop("weights"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_state_that_does_not_fit_changes_nothing(harness, how):
    averaged = Averaged(harness)
    averaged.feed(1.0)
    state = averaged.amp.state_dict()
    averaged.feed(INF)
    averaged.feed(2.0)
    before, average = averaged.amp.state_dict(), bits(averaged.ema.weights())
    entry = state["ema"][0]
    own = {name: f"w{index}" for index, name in enumerate(entry["weights"])}
    entry["weights"] = {own[name]: array for name, array in entry["weights"].items()}
    BROKEN[how](entry)
    back = {short: name for name, short in own.items()}
    if "weights" in entry:
        entry["weights"] = {back.get(name, name): array for name, array in entry["weights"].items()}
    with pytest.raises(ua.CheckpointError):
        averaged.amp.load_state_dict(state)
    assert averaged.amp.state_dict() == before
    assert bits(averaged.ema.weights()) == average


def test_an_average_set_by_name(harness, form):
    averaged = Averaged(harness, form)
    averaged.feed(1.0)
    averaged.ema.load_weights({name: array + 1 for name, array in averaged.ema.weights().items()})
    for name in averaged.oracle.values:
        averaged.oracle.values[name] += 1
    for feed in (1.0, INF, 2.0):
        averaged.check()
        averaged.feed(feed)
    names = list(averaged.ema.weights())
    with pytest.raises(ua.CheckpointError, match="averaged weights of the model are missing"):
        averaged.ema.load_weights({names[0]: averaged.ema.weights()[names[0]]})
    averaged.check()


# -- what it is of -----------------------------------------------------------------------------------------------------


@pytest.mark.needs("float32_weights")
def test_statistics_are_the_models_own(harness):
    amp = session(harness, loss_scale=SCALE)
    with amp.scope():
        model = harness.convnet(0)
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)
    ema = amp.ema(model, 0.5)
    rng = np.random.default_rng(0)
    labels = amp.to_native(np.arange(4))
    for _ in range(3):
        x = amp.to_native(harness.image_batch(rng.normal(size=(4, 8, 8, 1)).astype(np.float32) + 2))
        amp.backward(lambda x=x: harness.cross_entropy(model(x), labels), optimizer)
        assert amp.step(optimizer).applied
    own, average = amp.master_weights(model), ema.weights()
    trained = set(harness.parameters(model))
    assert set(average) == set(own)
    assert {name for name in own if np.array_equal(own[name], average[name])} == set(own) - trained
    assert len(set(own) - trained) == 2
    with ema.swapped():
        inside = amp.master_weights(model)
    assert bits(inside) == bits(average)
    assert bits(amp.master_weights(model)) == bits(own)


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


# -- interruptions and the end -----------------------------------------------------------------------------------------


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
