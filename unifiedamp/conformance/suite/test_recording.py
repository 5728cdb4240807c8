"""The recorder is an observer: it leaves training, models and the process as they were, and refuses mistakes."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session, settled_state
from unifiedamp.conformance.recorded import Kept, batch, layers, mlp_run

pytestmark = pytest.mark.needs("recording")


def test_training_is_the_same_with_a_recorder(harness, form):
    ended = []
    for every in (None, 2):
        amp, model, _, feed = mlp_run(harness, form, layers(4, 8, 2), loss_scale="dynamic")
        if every:
            amp.record(Kept(), every=every)
        losses = [float(np.reshape(amp.to_numpy(feed(batch(seed=seed))), ())) for seed in range(6)]
        ended.append((losses, harness.parameters(model), amp.state_dict()["state"]))
        amp.close()
    (losses, weights, state), (same, others, again) = ended
    assert same == pytest.approx(losses, rel=1e-5)
    assert state == again
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-5, atol=1e-6)


def test_evaluation_between_steps_does_not_count(harness, form):
    amp, model, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    kept = Kept()
    with amp.record(kept):
        with amp.inference(model):
            model(amp.to_native(batch() * np.float32(1e6)))
        feed(batch())
    (record,) = kept.of("step")
    rows = [(row["layer"], row["place"]) for row in record["activations"]]
    assert [layer for layer, place in rows if place == "output"] == ["layer0", "layer1", ""]
    assert rows.count(("", "input")) == 1
    assert ("layer0", "input") not in rows, "it is the model's own, which was recorded"
    assert all(row["largest"] < 1000 for row in record["activations"])


def test_gradients_alone(harness, form):
    amp, _, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    kept = Kept()
    with amp.record(kept, activations=False):
        feed(batch())
    (record,) = kept.of("step")
    assert record["activations"] == []
    assert len(record["gradients"]) == 4


def test_one_recorder_after_another(harness, form):
    """Each records what it was asked for, of steps that ran before it too."""
    amp, _, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    for activations in (True, False, True):
        kept = Kept()
        with amp.record(kept, activations=activations):
            feed(batch())
        (record,) = kept.of("step")
        assert bool(record["activations"]) is activations
        assert len(record["gradients"]) == 4


def test_a_step_that_fails_leaves_the_recorder_at_work(harness, form):
    """The model raises on a batch that does not fit; the steps before and after it are recorded whole."""
    amp, _, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    kept = Kept()
    with amp.record(kept, every=1):
        feed(batch())
        with pytest.raises(Exception) as caught:
            feed(np.ones((8, 5), np.float32))
        assert not isinstance(caught.value, ua.AmpError)
        feed(batch(2))
    records = kept.of("step")
    assert len(records) == 2
    assert [len(record["gradients"]) for record in records] == [4, 4]
    assert [len(record["activations"]) for record in records] == [len(records[0]["activations"])] * 2


def test_nothing_is_left_behind(harness, form):
    before = settled_state(harness)
    amp, model, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    feed(batch())
    with amp.record(Kept()):
        feed(batch())
    kind, names, attached = type(model), set(vars(model)), harness.attached(model)
    with amp.record(Kept(), every=2):
        for _ in range(3):
            feed(batch())
    assert type(model) is kind
    assert set(vars(model)) == names
    assert harness.attached(model) == attached
    feed(batch())
    amp.close()
    assert harness.global_state() == before


def test_mistakes_are_told(harness, tmp_path):
    run = probe_run(harness, loss_scale=1.0)
    amp = run.amp
    for every in (0, -1, 1.5, True):
        with pytest.raises(ua.ConfigError, match="every must be a whole number"):
            amp.record(Kept(), every=every)
    with pytest.raises(ua.ConfigError, match="where to"):
        amp.record()
    with pytest.raises(ua.ConfigError, match="where to"):
        amp.record(3)
    with pytest.raises(ua.ConfigError, match="cannot be written to"):
        amp.record(tmp_path)
    with pytest.raises(ua.StepOrderError, match="prepare"):
        session(harness).record(Kept())
    recorder = amp.record(Kept())
    with pytest.raises(ua.StepOrderError, match="records already"):
        amp.record(Kept())
    recorder.stop()
    recorder.stop()
    amp.record(tmp_path / "folder" / "run.jsonl").stop()
    assert (tmp_path / "folder" / "run.jsonl").read_text().count("\n") == 1


def test_layers_of_two_models_are_told_apart(harness, form):
    """Which have the same names: the second model's hold its number."""
    amp = session(harness, form, loss_scale=8.0)
    with amp.scope():
        models = [harness.mlp(layers(4, 4, 4)) for _ in range(2)]
        optimizer = harness.sgd(models, 0.01)
    *models, optimizer = amp.prepare(*models, optimizer)

    def step(x, y):
        amp.backward(lambda: harness.mean_square(models[0](x), models[1](y)), optimizer)
        amp.step(optimizer)

    step, kept = compiled(amp, form, step), Kept()
    with amp.record(kept):
        step(amp.to_native(np.float32(batch())), amp.to_native(np.float32(2 * batch())))
    (record,) = kept.of("step")
    largest = {row["layer"]: row["largest"] for row in record["activations"] if row["place"] == "output"}
    first, second = (largest[name] for name in ("layer0", "model1.layer0"))
    assert second == pytest.approx(2 * first, rel=1e-5)
    assert len(record["gradients"]) == 8


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")  # what returns mappings may not be compiled
@pytest.mark.parametrize("make", ["structured", "mapped"])
def test_numbers_in_structures_are_recorded(harness, form, make):
    """The largest floating number of all that a model returns is told as its output; whole numbers are not."""
    ((weight, bias),) = layers(4, 3)
    amp = session(harness, form, loss_scale=1.0)
    with amp.scope():
        model = getattr(harness, make)(weight, bias + 0.25)
        optimizer = harness.sgd([model], 0.01)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, y):
        def loss():
            found = model(x)
            output, double = (found["output"], found["pair"].double) if make == "mapped" else (found[0], found[1][0])
            return harness.mean_square(output + double, y)

        amp.backward(loss, optimizer)
        amp.step(optimizer)

    step, kept = compiled(amp, form, step), Kept()
    with amp.record(kept):
        step(amp.to_native(batch()), amp.to_native(np.zeros((8, 3), np.float32)))
    (record,) = kept.of("step")
    largest = np.abs(np.float64(batch()) @ weight + bias + 0.25).max()
    told = [row["largest"] for row in record["activations"] if (row["layer"], row["place"]) == ("", "output")]
    assert told == pytest.approx([2 * largest], rel=1e-5)
    assert all(row["dtype"] == "float32" for row in record["activations"])
    assert len(record["gradients"]) == 2
