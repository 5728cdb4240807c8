"""The recorder names planted faults: layers, gradients, batches, constants."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session
from unifiedamp.conformance.recorded import Kept, batch, layers, mlp_run

pytestmark = pytest.mark.needs("recording")


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


def test_activations_below_zero_are_named_too(harness, form):
    weights = layers(4, 4, 4)
    weights[1] = (weights[1][0], np.full(4, -1e5, np.float32))
    amp, _, _, feed = mlp_run(harness, form, weights, loss_scale=1.0)
    kept = Kept()
    with amp.record(kept):
        feed(batch())
    assert list(kept.found("activation")) == ["layer1"]
    rows = kept.of("step")[0]["activations"]
    assert max(row["largest"] for row in rows if row["layer"] == "layer1") == pytest.approx(1e5, rel=0.01)


@pytest.mark.needs("accumulation")
@pytest.mark.parametrize("order", [(1.0, 100.0, 10.0), (100.0, 1.0, 10.0), (1.0, 10.0, 100.0)])
def test_the_largest_value_of_a_window_is_recorded(harness, form, order):
    """Of its micro-batches, each of which is made and forgotten."""
    amp, _, _, feed = mlp_run(harness, form, [(np.eye(4), np.zeros(4))], loss_scale=1.0, accumulate_steps=3)
    kept = Kept()
    with amp.record(kept):
        for value in order:
            feed(np.full((8, 4), value))
    (record,) = kept.of("step")
    found = {row["place"]: row["largest"] for row in record["activations"]}
    assert found == {"input": 100.0, "output": 100.0}


def test_each_of_many_layers_has_its_own_largest_value(harness, form):
    """Each doubles what it gets."""
    depth = 16
    amp, _, _, feed = mlp_run(harness, form, [(2.0 * np.eye(4), np.zeros(4))] * depth, loss_scale=1.0)
    kept = Kept()
    with amp.record(kept):
        feed(np.ones((8, 4)))
    rows = kept.of("step")[0]["activations"]
    found = {row["layer"]: row["largest"] for row in rows if row["place"] == "output" and row["layer"][:5] == "layer"}
    assert found == {f"layer{index}": 2.0 ** (index + 1) for index in range(depth)}


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
    assert record["non_finite"]["loss_was_finite"] is False
    found = kept.found("non_finite")
    assert list(found) == ["layer1"]
    assert "1 of 1 skipped step" in found["layer1"]


def test_a_layer_that_makes_nan_is_named_as_the_first(harness):
    """Of one of its numbers; the others are finite. The last layer, since a framework's ReLU may turn nan to 0."""
    weights = layers(4, 4, 4)
    weights[1] = (weights[1][0], np.float32([0.0, np.nan, 0.0, 0.0]))
    amp, _, _, feed = mlp_run(harness, "eager", weights, loss_scale="dynamic")
    kept = Kept()
    with amp.record(kept):
        feed(batch())
    (record,) = kept.of("step")
    assert record["non_finite"]["first_activation"]["layer"] == "layer1"
    assert list(kept.found("non_finite")) == ["layer1"]
    told = {row["layer"]: row["largest"] for row in record["activations"] if row["place"] == "output"}
    assert told["layer1"] == "nan"
    assert math.isfinite(told["layer0"])


def test_one_nan_among_finite_numbers_is_seen(harness, form):
    """Wherever it is in the batch."""
    weight = np.zeros((4, 4), np.float32)
    weight[:2, 0] = 3e38, -3e38  # inf - inf, where an input is large
    amp, _, _, feed = mlp_run(harness, form, [(weight, np.zeros(4))], loss_scale="dynamic")
    kept, rows = Kept(), (0, 1, 4, 7)
    with amp.record(kept, every=1):
        for row in rows:
            x = np.zeros((8, 4), np.float32)
            x[row] = 10.0
            feed(x)
    found = [record["non_finite"]["first_activation"] for record in kept.of("step")]
    assert [(each["layer"], each["place"]) for each in found] == [("layer0", "output")] * len(rows)


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


def lost_epsilons(harness, policy):
    """Return what a recording says of an epsilon of 1e-8 in a layer named ``ratio``."""
    amp, kept = session(harness, policy=policy), Kept()
    with amp.scope():
        model = harness.ratio(1e-8)
        optimizer = harness.sgd([model], 0.1)
    amp.prepare(model, optimizer)
    amp.record(kept).stop()
    return kept.found("epsilon")


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_an_epsilon_that_float16_loses_is_named(harness, policy):
    if not harness.capabilities().policies[policy]:
        policy = "mixed_bfloat16"
    found = lost_epsilons(harness, policy)
    if policy == "float32":
        assert found == {}
    elif policy == "mixed_float16":
        assert "is 0 in float16" in found["ratio"]
    else:
        assert "would be 0 in float16" in found["ratio"]


@pytest.mark.needs("layer_overrides")
@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
def test_an_epsilon_of_a_layer_kept_in_float32_is_not_named(harness):
    """It is added in float32, whatever the layers around it run in."""
    policy = ua.Policy.parse("mixed_bfloat16").replace(layer_overrides={"ratio": "float32"})
    assert lost_epsilons(harness, policy) == {}


def test_epsilons_of_optimizers_are_noted(harness):
    run = probe_run(harness, optimizer="adam", loss_scale=1.0)
    kept = Kept()
    run.amp.record(kept).stop()
    (header,) = kept.of("header")
    found = [row for row in header["epsilons"] if "adam" in row["layer"].lower()]
    assert [row["value"] for row in found] == [1e-8]


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_an_optimizer_over_master_weights_adds_its_epsilon_in_float32(harness, policy):
    policy = harness.pure_policies[policy]
    run = probe_run(harness, optimizer="adam", policy=policy, master_weights=True, loss_scale=1.0)
    kept = Kept()
    run.amp.record(kept).stop()
    (header,) = kept.of("header")
    assert [row["dtype"] for row in header["epsilons"] if "adam" in row["layer"].lower()] == ["float32"]
    assert kept.found("epsilon") == {}


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
    assert bad[0]["non_finite"]["loss_was_finite"] is True
    assert (bad[0]["scale"], bad[0]["next_scale"], bad[0]["loss"]) == (8.0, 4.0, pytest.approx(0.7e38, rel=1e-5))
    assert kept.of("skip") == []
