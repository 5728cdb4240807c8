"""``amp.record``: it counts right, finds planted faults by name, and leaves training as it was."""

import math
import struct
from itertools import pairwise

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.recording.advice import findings
from unifiedamp.recording.reading import Recording

pytestmark = pytest.mark.needs("recording")


class Kept:
    """A sink that keeps its records."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed = True

    def of(self, kind):
        return [record for record in self.records if record["kind"] == kind]

    def found(self, kind):
        recording = Recording(self.of("header"), self.of("step"), self.of("skip"))
        return {each.name: each.text for each in findings(recording) if each.kind == kind}


def mlp_run(harness, form, weights, policy="float32", **options):
    """A model of dense layers, and a step of mean squared error against zeros."""
    amp = session(harness, form, policy, **options)
    with amp.scope():
        model = harness.mlp([(np.float32(w), np.float32(b)) for w, b in weights])
        optimizer = harness.sgd([model], 0.01)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, y):
        loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    step = compiled(amp, form, step)
    outputs = len(weights[-1][1])

    def feed(x):
        return step(amp.to_native(np.float32(x)), amp.to_native(np.zeros((len(x), outputs), np.float32)))

    return amp, model, optimizer, feed


def layers(*sizes, seed=0):
    rng = np.random.default_rng(seed)
    pairs = pairwise(sizes)
    return [(rng.normal(0, 0.5, (a, b)).astype(np.float32), np.zeros(b, np.float32)) for a, b in pairs]


def batch(rows=8, columns=4, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (rows, columns)).astype(np.float32)


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


# -- counting ---------------------------------------------------------------------------------------------------------

VALUES = (0.0, 1.0, -1.5, 2.0**-24, 2.0**-24 * 0.999, 2.0**-14, 2.0**-15, 3e-20, 65504.0, 65505.0, 70000.0, 2.0**-30)


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 1000.0])
def test_each_value_is_counted_where_it_belongs(harness, form, scale):
    """Against plain Python: the gradient of ``w_i`` is ``x_i``, scaled in float32."""
    # Dividing by 1000 rounds, so values stay clear of the powers of two then.
    values = VALUES if scale != 1000.0 else [1.1 * value for value in VALUES]
    run = probe_run(harness, form, values=(0.0,) * len(values), loss_scale=scale)
    kept = Kept()
    with run.amp.record(kept):
        run.feed(*values)
    (record,) = kept.of("step")
    assert record["scale"] == scale
    assert len(record["gradients"]) == len(values)
    for i, value in enumerate(values):
        true = abs(as_float32(value))
        for which, size in (("true", true), ("scaled", as_float32(true * scale))):
            told = record["gradients"][f"w{i}"][which]
            exponents = {} if size == 0 else {str(math.frexp(size)[1] - 1): 1}
            assert told == {
                "zero": int(size == 0), "inf": 0, "nan": 0, "overflow": int(size > 65504),
                "flushed": int(0 < size < 2.0**-24), "subnormal": int(2.0**-24 <= size < 2.0**-14),
                "exponents": exponents,
            }, (value, which)  # fmt: skip


def test_every_value_of_a_gradient_is_counted(harness, form):
    amp, _, optimizer, feed = mlp_run(harness, form, layers(4, 16, 3), loss_scale=256.0)
    kept = Kept()
    with amp.record(kept):
        feed(batch())
    gradients = kept.of("step")[0]["gradients"]
    sizes = [sum(g["scaled"]["exponents"].values()) + g["scaled"]["zero"] for g in gradients.values()]
    assert sorted(sizes) == [3, 16, 48, 64]
    for gradient in gradients.values():
        shifted = {str(int(e) - 8): count for e, count in gradient["scaled"]["exponents"].items()}
        assert gradient["true"]["exponents"] == shifted
    assert amp.gradients(optimizer) == {}


def test_inf_and_nan_are_counted_apart(harness, form):
    run = probe_run(harness, form, values=(1.0, 1.0, 1.0), loss_scale=4.0)
    kept = Kept()
    with run.amp.record(kept):
        run.feed(math.inf, math.nan, 1.0)
    told = {name: g["scaled"] for name, g in kept.of("step")[0]["gradients"].items()}
    assert [(told[f"w{i}"]["inf"], told[f"w{i}"]["nan"]) for i in range(3)] == [(1, 0), (0, 1), (0, 0)]


# -- planted faults ---------------------------------------------------------------------------------------------------


def test_a_layer_whose_activations_pass_65504_is_named(harness, form):
    weights = layers(4, 4, 4, 4)
    weights[1] = (weights[1][0], np.float32([1e5, 0, 0, 0]))
    weights[2] = (weights[2][0] * np.float32(1e-6), weights[2][1])
    amp, _, _, feed = mlp_run(harness, form, weights, loss_scale=1.0)
    kept = Kept()
    with amp.record(kept):
        feed(batch())
    found = kept.found("activation")
    assert list(found) == ["layer1"]
    assert 'layer_overrides = {"layer1" = "float32"}' in found["layer1"]
    rows = kept.of("step")[0]["activations"]
    largest = {row["layer"]: row["largest"] for row in rows if row["place"] == "output"}
    assert largest["layer1"] == pytest.approx(1e5, rel=0.01)


def test_a_layer_that_overflows_is_named_as_the_first(harness, form):
    weights = layers(4, 4, 4, 4)
    weights[1] = (np.full((4, 4), 3e38, np.float32), weights[1][1])
    amp, _, _, feed = mlp_run(harness, form, weights, loss_scale="dynamic")
    kept = Kept()
    with amp.record(kept):
        feed(np.abs(batch()) * 100)
    (record,) = kept.of("step")
    assert record["applied"] is False
    assert record["non_finite"]["first_activation"]["layer"] == "layer1"
    assert record["non_finite"]["first_activation"]["place"] == "output"
    found = kept.found("non_finite")
    assert list(found) == ["layer1"]
    assert "1 of 1 skipped step" in found["layer1"]


def test_a_batch_that_holds_inf_is_told_from_the_model(harness, form):
    amp, _, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale="dynamic")
    x = batch()
    x[0, 0] = math.inf
    kept = Kept()
    with amp.record(kept):
        feed(x)
    assert list(kept.found("input")) == [""]
    assert kept.found("non_finite") == {}


def test_a_gradient_that_is_all_below_the_smallest_float16_is_named(harness, form):
    run = probe_run(harness, form, values=(1.0, 1.0), loss_scale=1.0)
    kept = Kept()
    with run.amp.record(kept, every=1):
        for _ in range(3):
            run.feed(0.5, 2.0**-27)
    found = kept.found("underflow")
    assert list(found) == ["w1"]
    assert "100%" in found["w1"]
    # 0.5 times 2**15 is 2**14: a factor of two below what would overflow, and 2**-27 is well inside.
    assert "raise the initial scale to 2**15 (then 0%)" in found["w1"]


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_an_epsilon_that_float16_loses_is_named(harness, policy):
    if not harness.capabilities().policies[policy]:
        policy = "mixed_bfloat16"
    amp = session(harness, policy=policy)
    with amp.scope():
        model = harness.ratio(1e-8)
        optimizer = harness.sgd([model], 0.1)
    amp.prepare(model, optimizer)
    kept = Kept()
    amp.record(kept).stop()
    found = kept.found("epsilon")
    if policy == "float32":
        assert found == {}
    elif policy == "mixed_float16":
        assert "is 0 in float16" in found["ratio"]
    else:
        assert "would be 0 in float16" in found["ratio"]


def test_an_inf_in_one_gradient_at_a_step_nobody_recorded_is_named(harness, form):
    """Looking is free, or the backend keeps the last skip's names, or the next look tells that there was one."""
    run = probe_run(harness, form, values=(1.0, 1.0, 1.0), loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    kept = Kept()
    with run.amp.record(kept, every=10):
        for step in range(1, 13):
            # 1e38 is finite, as is the loss; eight times as much is not.
            run.feed(1.0, 1e38 if step == 7 else 1.0, 1.0)
    assert [record["step"] for record in kept.of("skip")][:1] in ([7], [10])
    skip = kept.of("skip")[0]
    assert (skip["since"], skip["exact"]) == ((6, True) if skip["step"] == 7 else (1, False))
    assert skip["count"] == 1
    assert skip["non_finite"]["gradients"] == ["w1"]
    assert skip["non_finite"]["loss_was_finite"] is True
    assert list(kept.found("non_finite")) == ["w1"]
    assert run.amp.skipped_steps == 1


def test_an_inf_in_one_gradient_at_a_recorded_step_is_named(harness, form):
    run = probe_run(harness, form, values=(1.0, 1.0, 1.0), loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    kept = Kept()
    with run.amp.record(kept, every=4):
        for step in range(1, 6):
            run.feed(1.0, 1.0, 1e38 if step == 4 else 1.0)
    bad = [record for record in kept.of("step") if record["non_finite"]]
    assert [(record["step"], record["non_finite"]["gradients"], record["applied"]) for record in bad] == [
        (4, ["w2"], False)
    ]
    assert (bad[0]["scale"], bad[0]["next_scale"], bad[0]["loss"]) == (8.0, 4.0, pytest.approx(0.7e38, rel=1e-5))
    assert kept.of("skip") == []


# -- when -------------------------------------------------------------------------------------------------------------


def test_the_first_step_and_every_nth_are_recorded(harness, form):
    run = probe_run(harness, form, loss_scale=8.0)
    kept = Kept()
    with run.amp.record(kept, every=4) as recorder:
        for _ in range(10):
            run.feed(1.0)
    assert [(r["step"], r["reason"], r["applied_steps"]) for r in kept.of("step")] == [
        (1, "first", 1), (4, "every", 4), (8, "every", 8),
    ]  # fmt: skip
    assert (recorder.step, recorder.recorded, kept.closed) == (10, 3, True)
    run.feed(1.0)
    assert len(kept.of("step")) == 3


def test_steps_are_numbered_on_after_a_checkpoint(harness, form):
    run = probe_run(harness, form, loss_scale=8.0)
    state = run.amp.state_dict()
    state["state"]["applied_steps"] = 41
    run.amp.load_state_dict(state)
    kept = Kept()
    with run.amp.record(kept, every=43):
        run.feed(1.0)
        run.feed(1.0)
    assert kept.of("header")[0]["first_step"] == 42
    assert [record["step"] for record in kept.of("step")] == [42, 43]


def test_a_step_after_a_skipped_one_is_recorded(harness, form):
    run = probe_run(harness, form, loss_scale="dynamic")
    kept = Kept()
    with run.amp.record(kept, every=6):
        for step in range(1, 15):
            run.feed(math.inf if step == 9 else 1.0)
    after = [record["step"] for record in kept.of("step") if record["reason"] == "after a skip"]
    assert after == ([10] if kept.of("skip")[0]["exact"] else [13])
    assert [record["step"] for record in kept.of("step") if record["reason"] != "after a skip"] == [1, 6, 12]


@pytest.mark.needs("accumulation")
def test_a_window_of_micro_batches_is_one_step(harness, form):
    run = probe_run(harness, form, loss_scale=4.0, accumulate_steps=2)
    kept = Kept()
    with run.amp.record(kept, every=2):
        for value in (1.0, 3.0, 2.0, 6.0, 1.0, 1.0):
            run.feed(value)
    # The mean of 1 and 3 is 2, that of 2 and 6 is 4.
    told = [list(record["gradients"]["w0"]["true"]["exponents"]) for record in kept.of("step")]
    assert [record["step"] for record in kept.of("step")] == [1, 2]
    assert told == [["1"], ["2"]]


def test_clipped_steps_are_counted_before_clipping(harness, form):
    run = probe_run(harness, form, loss_scale=4.0, clip=lambda amp, optimizer: amp.clip_grad_norm(optimizer, 0.001))
    kept = Kept()
    with run.amp.record(kept):
        run.feed(8.0)
    (record,) = kept.of("step")
    assert list(record["gradients"]["w0"]["true"]["exponents"]) == ["3"]
    assert list(record["gradients"]["w0"]["scaled"]["exponents"]) == ["5"]


# -- an observer ------------------------------------------------------------------------------------------------------


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
    assert [row["layer"] for row in record["activations"] if row["layer"] and row["place"] == "output"] == [
        "layer0", "layer1",
    ]  # fmt: skip
    assert all(row["largest"] < 1000 for row in record["activations"])


def test_gradients_alone(harness, form):
    amp, _, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    kept = Kept()
    with amp.record(kept, activations=False):
        feed(batch())
    (record,) = kept.of("step")
    assert record["activations"] == []
    assert len(record["gradients"]) == 4


def test_nothing_is_left_behind(harness, form):
    before = harness.global_state()
    amp, model, _, feed = mlp_run(harness, form, layers(4, 4, 4), loss_scale=1.0)
    feed(batch())
    kind, names = type(model), set(vars(model))
    with amp.record(Kept(), every=2):
        for _ in range(3):
            feed(batch())
    assert type(model) is kind
    assert set(vars(model)) == names
    feed(batch())
    amp.close()
    assert harness.global_state() == before


def test_without_a_loss_scale(harness, form):
    run = probe_run(harness, form, loss_scale="none")
    kept = Kept()
    with run.amp.record(kept, every=2):
        run.feed(1.0)
        run.feed(2.0**-30)
    first, second = kept.of("step")
    assert first["scale"] == second["scale"] == 1.0
    assert second["gradients"]["w0"]["scaled"]["flushed"] == 1
    assert first["applied"] is True


@pytest.mark.needs("several_optimizers")
def test_two_optimizers_are_one_step(harness, form):
    amp = session(harness, form, "float32", loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    with amp.scope():
        models = [harness.probe([1.0]), harness.probe([1.0])]
        optimizers = [harness.sgd([model], 0.1) for model in models]
    *models, one, two = amp.prepare(*models, *optimizers)

    def step(x, y):
        for model, optimizer, value in zip(models, (one, two), (x, y), strict=True):
            amp.backward(lambda model=model, value=value: model(value), optimizer)
        amp.step(one)
        amp.step(two)

    step = compiled(amp, form, step)
    kept = Kept()
    with amp.record(kept, every=2):
        for value in (1.0, 1e38, 1.0):
            step(amp.to_native(np.float32([1.0])), amp.to_native(np.float32([value])))
    records = kept.of("step")
    assert [record["step"] for record in records][:2] == [1, 2]
    assert [len(record["gradients"]) for record in records][:2] == [2, 2]
    assert len(records[1]["non_finite"]["gradients"]) == 1
    assert (records[1]["applied_steps"], records[1]["skipped_steps"]) == (3, 1)
    assert kept.of("skip") == []


# -- refusals ---------------------------------------------------------------------------------------------------------


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
