"""A saved average goes on bit for bit, under any backend; one that does not fit changes nothing."""

import copy
import json
import pickle

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.averages import AverageOracle
from unifiedamp.conformance.driver import probe_run, session
from unifiedamp.conformance.suite.averaged import FEEDS, INF, SCALE, Averaged, Pair, bits

pytestmark = pytest.mark.needs("ema")


def resumed(harness, form, state, weights, **options):
    """A new run, which has skipped a step, that goes on from a state, with the weights of the old one."""
    values = [float(np.ravel(value)[0]) for value in weights.values()]
    second = Averaged(harness, form, values=tuple(values), **options)
    second.run.feed(INF, INF)
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


@pytest.mark.parametrize("made", [0, 1, 2])
def test_averages_of_several_models_are_taken_over(harness, tmp_path, made):
    """In their order, by way of a checkpoint file, those of the session and those that are made later."""
    from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint

    def pair():
        amp = session(harness, loss_scale=SCALE)
        models = [harness.probe([1.0]) for _ in range(2)]
        *models, optimizer = amp.prepare(*models, harness.sgd(models, 0.5))
        return amp, models, optimizer

    amp, models, optimizer = pair()
    emas = [amp.ema(model, 0.5) for model in models]
    x, y = (amp.to_native(np.float32([value])) for value in (1.0, 3.0))
    amp.backward(lambda: models[0](x) + models[1](y), optimizer)
    assert amp.step(optimizer).applied
    save_checkpoint(tmp_path / "c.npz", {}, {}, amp)
    other, copies, _ = pair()
    found = [other.ema(model, 0.5) for model in copies[:made]]
    other.load_state_dict(load_checkpoint(tmp_path / "c.npz").meta["amp"])
    found += [other.ema(model, 0.5) for model in copies[made:]]
    averages = [[float(np.ravel(array)[0]) for array in ema.weights().values()] for ema in found]
    assert averages == [[0.75], [0.25]]
    assert [bits(ema.weights()) for ema in found] == [bits(ema.weights()) for ema in emas]


@pytest.mark.needs("several_optimizers", "float32_weights")
def test_averages_beside_other_optimizers_are_taken_over(harness):
    """Each with its own optimizer's count, also where weights are set by name: the other average stays."""
    first, second = Pair(harness, "eager"), Pair(harness, "eager")
    for index, gradient in ((0, 1.0), (1, 2.0), (1, INF), (1, -1.0)):
        first.train(index, gradient)
    state = json.loads(json.dumps(first.amp.state_dict()))
    for model, other in zip(first.models, second.models, strict=True):
        second.amp.load_master_weights(other, first.amp.master_weights(model))
    second.amp.load_state_dict(state)
    assert [ema.updates for ema in second.emas] == [ema.updates for ema in first.emas] == [1, 2]
    second.oracles = first.oracles
    second.train(0, 4.0)
    one, two = second.emas
    before = bits(two.weights())
    one.load_weights({name: array * 0 + 8.0 for name, array in one.weights().items()})
    assert [float(np.ravel(array)[0]) for array in one.weights().values()] == [8.0]
    assert bits(two.weights()) == before


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


def with_foreign_character(entry):
    """Put a character into the text of an array that a lenient reader skips."""
    array = entry["weights"]["w1"]
    array["base64"] = array["base64"][:2] + "?" + array["base64"][2:]


BROKEN = {
    "name": lambda entry: entry["weights"].update(w7=entry["weights"].pop("w1")),
    "missing": lambda entry: entry["weights"].pop("w1"),
    "shape": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "shape": [1, 1]}),
    "length": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "shape": [2]}),
    "text": lambda entry: entry["weights"].update(w1={**entry["weights"]["w1"], "base64": "?"}),
    "character": with_foreign_character,
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


def set_before_any_step(harness, form):
    """Return a run whose average was set to other values than the weights, and that applied no step."""
    averaged = Averaged(harness, form)
    averaged.ema.load_weights({name: array + 1 for name, array in averaged.ema.weights().items()})
    averaged.oracle.values = {name: np.float64(value) + 1 for name, value in averaged.weights().items()}
    return averaged


def test_an_average_set_before_any_step(harness, form):
    averaged = set_before_any_step(harness, form)
    for feed in (INF, *FEEDS):
        averaged.check()
        averaged.feed(feed)
    averaged.check()


def test_a_saved_average_that_no_step_has_moved(harness, form):
    first = set_before_any_step(harness, form)
    second = resumed(harness, form, first.amp.state_dict(), first.weights(), decay=0.75)
    second.oracle = first.oracle
    for feed in FEEDS:
        second.check()
        second.feed(feed)
    second.check()


def test_an_average_is_neither_pickled_nor_copied(harness):
    """A copy would stand still; the deep copy of what holds an average holds it."""
    averaged = Averaged(harness)
    holder = copy.deepcopy({"ema": averaged.ema})
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ua.WrongObjectError, match=r"cannot be pickled.*amp\.state_dict\(\).*ema\.weights\(\)"):
            pickle.dumps(holder, protocol)
    averaged.feed(1.0)
    averaged.oracle.check(holder["ema"].weights())
    assert holder["ema"].updates == 1
