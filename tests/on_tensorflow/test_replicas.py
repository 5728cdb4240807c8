"""Two replicas of a ``MirroredStrategy``: they sum their gradients, decide alike, and the scale is updated once."""

from collections import Counter

import numpy as np
import pytest
from two_workers import WORKER, on_two_workers

import unifiedamp as ua

keras = pytest.importorskip("tensorflow").keras

FORMS = ("eager", "compiled", "inside", "max")
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
GOOD, INF, NAN = (0.5, 0.5), (0.5, float("inf")), (float("nan"), 0.5)


@pytest.fixture
def results(replica_results):
    return replica_results


def oracle(pairs, accumulate=1, settings=SCALE):
    """Plain Python: the sum of both replicas' gradients, averaged over a window, SGD 0.1 from 1."""
    state, weight, total, rows = settings.initial_state(), 1.0, 0.0, []
    applied = skipped = 0
    for index, pair in enumerate(pairs, 1):
        scale, total = state.scale, total + sum(pair) / accumulate
        if index % accumulate == 0:
            finite = total - total == 0
            state = settings.next_state(state, not finite)
            weight -= 0.1 * total if finite else 0.0
            applied, skipped, total = applied + finite, skipped + (not finite), 0.0
        rows.append([scale, [pytest.approx(weight, abs=1e-5)] * 2, state.good_steps, applied, skipped])
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_the_trace(results, form):
    assert results["trace"][form] == oracle([GOOD, GOOD, GOOD, INF, GOOD, GOOD, NAN])


def check_averages(rows, decay=0.5):
    """The average of the first replica's weights, on both replicas; it moves where the weights did."""
    before, average, updates = 1.0, 1.0, 0
    for own, inside, after, count in rows:
        assert own == after
        assert own[0] == own[1]
        if own[0] != before:
            average, before, updates = decay * average + (1 - decay) * own[0], own[0], updates + 1
        assert inside == [pytest.approx(average, abs=2e-6)] * 2
        assert count == updates


@pytest.mark.parametrize("form", FORMS)
def test_averages_are_one(results, form):
    for case, updates in (("ema", 4), ("ema_without_a_scale", 3)):
        check_averages(results[case][form])
        assert results[case][form][-1][-1] == updates


def test_fit_moves_averages(results):
    rows = results["ema_in_fit"]["eager"]
    check_averages(rows[:3])
    check_averages(rows[3:])
    assert [row[-1] for row in rows] == [1, 2, 3] * 2


@pytest.mark.parametrize("form", FORMS)
def test_accumulation(results, form):
    assert results["accumulation"][form] == oracle([GOOD, (1.5, 0.5), GOOD, INF, GOOD, GOOD], accumulate=2)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_scale(results, form):
    assert results["no_scale"][form] == oracle([GOOD, (1.0, 2.0)], settings=ua.NoLossScale())


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_in_keras_2s_calls(results, form):
    assert results["keras2"][form] == oracle([GOOD, GOOD, GOOD, INF, GOOD, NAN])


@pytest.mark.parametrize("form", FORMS)
def test_clipping_acts_on_the_sum(results, form):
    assert results["clip"][form] == [[4.0, [pytest.approx(0.9)] * 2, 1, 1, 0]]
    assert results["clip_value_hides_no_inf"][form] == [[4.0, [1.0, 1.0], 0, 0, 1]]


@pytest.mark.parametrize("form", FORMS)
def test_a_discarded_window(results, form):
    assert results["discard"][form] == [[pytest.approx(0.9)] * 2, 1]


@pytest.mark.parametrize("form", FORMS)
def test_a_condition_on_any_replica_drops_the_step_on_all(results, form):
    for rows, scaled in zip(results["skip_if"][form], (True, False, True), strict=True):
        state, weight, expected = SCALE.initial_state(), 1.0, []
        applied = skipped = 0
        for index, dropped in enumerate((False, True, True, True, False, True, False, False)):
            overflows = scaled and index == 4
            state = state if dropped or not scaled else SCALE.next_state(state, overflows)
            done = not (dropped or overflows)
            weight, applied, skipped = weight - 0.1 * done, applied + done, skipped + overflows
            scale = state.scale if scaled else 1.0
            expected.append([[pytest.approx(weight, abs=1e-5)] * 2, scale, applied, skipped])
        assert rows == expected


@pytest.mark.parametrize("form", FORMS)
def test_two_optimizers_skip_each_by_itself_and_share_the_scale(results, form):
    expected = [[4.0, 0.9, 0.9, 2, 0], [2.0, 0.9, 0.8, 3, 1], [2.0, 0.8, 0.7, 5, 1]]
    for row, (scale, first, second, *counts) in zip(results["two_optimizers"][form], expected, strict=True):
        assert row == [scale, [pytest.approx(first)] * 2, [pytest.approx(second)] * 2, *counts]


@pytest.mark.parametrize("form", FORMS)
def test_masters_of_all_replicas_are_one(results, form):
    """Float32 masters move by what 16-bit weights cannot hold; a bad window of one replica leaves both."""
    rows, masters = results["masters"][form], [1.0, *[1 - 0.00035] * 4, 1 - 0.00065]
    for kept, digits in ((rows[:6], 2**11), (rows[6:], 2**8)):
        rounded = [round(master * digits) / digits for master in masters]
        np.testing.assert_allclose([both for _, both, *_ in kept], [[master] * 2 for master in masters], atol=2e-6)
        np.testing.assert_allclose([both for both, *_ in kept], [[weight] * 2 for weight in rounded], atol=2e-6)
        assert [row[2:] for row in kept] == [[0, 0], [1, 0], [1, 0], [1, 1], [1, 1], [2, 1]]


@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_step_is_of_all_replicas(results, form):
    """The losses are added, gradients counted together, and of what layers saw the largest is kept."""
    (first, second, third, _), ranks, applied = results["recording"][form]
    assert (first[0], second[0], third[0]) == (7.5, 4.375, "-inf")
    for (_, scale, gradients, activations), values, inputs, outputs in (
        (first, [1.0, 2.0, 4.0, 0.5], 4.0, 4.5),
        (second, [0.0, 1.0, 8.0, 1.0], 8.0, 3.6875),
        (third, [1.0, 1.0, np.inf, 1.0], "inf", "inf"),
    ):
        (counts,) = gradients.values()
        numbers = [value for value in values if 0 < value < np.inf]
        for form_of, factor in (("true", 1.0), ("scaled", scale)):
            exponents = Counter(str(int(np.log2(value * factor))) for value in numbers)
            assert counts[form_of]["exponents"] == exponents
            assert (counts[form_of]["zero"], counts[form_of]["inf"]) == (values.count(0.0), values.count(np.inf))
        assert [row["largest"] for row in activations] == [inputs, outputs, outputs]
    assert applied == [True, True, False, False]
    assert ranks == [
        None, None, {"during": "forward", "ranks": [1], "name": ""}, {"during": "reduction", "ranks": [], "name": ""},
    ]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_exhaustion_is_told_once_and_names_the_tensors(results, form):
    told = [[count, ["w0"], False] for count in (1, 2, 3)]
    assert results["exhaustion"][form] == [3, ["w0"], False, told]


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_an_embedding(results, form):
    assert results["sparse_rows"][form] == [[0.5, 0.0, 1.0, 1.0, 0.5]] * 2


@pytest.mark.parametrize("form", FORMS)
def test_a_state_taken_over(results, form):
    row = [[pytest.approx(0.9)] * 2, [32.0, 32.0], 1]
    assert results["state_taken_over"][form] == [row, row]


@pytest.mark.parametrize("form", FORMS)
def test_one_trace_serves_all_steps(results, form):
    assert results["traces"][form] == {"eager": 6 * 2}.get(form, 2)


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_fit_trains_as_plain_keras_does(results, form):
    (ours, applied, skipped, scale), (plain, *_) = results["fit"][form]
    assert (applied, skipped, scale) == (4, 0, 8.0)
    for weights, others in zip(ours, plain, strict=True):
        assert weights[0] == weights[1]
        np.testing.assert_allclose(weights, others, rtol=1e-5)


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_fit_skips_on_both_what_one_found(results, form):
    weights, applied, skipped, scale = results["fit_skips"][form]
    assert (applied, skipped, scale) == (3, 1, 2.0)
    assert all(first == second for first, second in weights)
    assert "nan" not in str(weights).lower()


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_the_callback_logs_one_scale_for_all_replicas(results, form):
    (*_, skipping), (weights, *_, logs) = results["fit_logs"][form]
    assert (skipping["loss_scale"], skipping["skipped_steps"]) == ([2.0], [1.0])
    assert (logs["loss_scale"], logs["skipped_steps"]) == ([8.0], [0.0])
    assert weights == results["fit"][form][0][0]


def test_weights_of_a_mirrored_model_hold_the_session(results):
    saved, loaded = results["fit_saved"]["eager"]
    assert saved == loaded
    assert (saved["scale"], saved["skipped_steps"]) == (2.0, 1)


FITTING = """
import numpy as np
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2, kernel_initializer="ones")])
    amp = ua.Amp("tensorflow", "float32", loss_scale=4.0)
    model, optimizer = amp.prepare(model, tf.keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
rows = tf.data.Dataset.from_tensor_slices((np.ones((8, 4), np.float32), np.zeros((8, 2), np.float32))).batch(4)
from unifiedamp.integrations.keras import AmpCallback
trained, records, said = [], [], ""
try:
    model.fit(rows, epochs=1, verbose=0)
    trained = [round(float(model.get_weights()[0][0, 0]), 5), amp.applied_steps]
    model.fit(rows, epochs=1, verbose=0, callbacks=[AmpCallback(amp, records.append, every=1)])
except ua.UnsupportedError as error:
    said = str(error)
print(json.dumps([trained, said, len(records)]))
"""
RECORDS = 6
"""Of two steps, with what a recording begins and ends with."""


def rounded(value, dtype):
    """Return a float64 rounded to a dtype by numpy alone, ties to even."""
    if dtype == "bfloat16":
        bits = int(np.float32(value).view(np.uint32))
        return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))
    with np.errstate(over="ignore"):
        return float(np.float32(value) if dtype in (None, "float32") else np.float16(value))


PAIRS = ((1 + 2**-9, 3 * 2**-10), (3.1, 7.7), (40000.0, 40000.0), (70000.0, 1.0))


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_summed_in_the_dtype(results, form, dtype):
    """An overflow that the cast or the sum makes skips the step on both replicas."""
    rows, said = results["reduced"][form][str(dtype)]
    for pair, (weights, applied) in zip(PAIRS, rows, strict=True):
        total = rounded(sum(rounded(each, dtype) for each in pair), dtype)
        finite = np.isfinite(total)
        assert applied == finite
        assert weights == [pytest.approx(1 - 0.1 * total if finite else 1.0, rel=1e-6, abs=1e-6)] * 2
    assert said == f"reduced in {dtype or 'the dtype of each gradient'}"


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_in_float16_is_unscaled_in_float32(results, form):
    assert results["reduced_small"][form] == [pytest.approx(-0.1 * 2.0**-26, rel=1e-6)] * 2


@pytest.mark.parametrize("form", FORMS)
def test_sparse_gradients_keep_their_dtype(results, form):
    own = 1 + 2**-9
    assert results["reduced_rows"][form] == [-own, -own, -2 * own]


@pytest.mark.parametrize("form", FORMS)
def test_fit_sums_in_the_dtype(results, form):
    (plain, said), *others = results["reduced_in_fit"][form]
    exact = sum(PAIRS[1])
    parts = 0.1 * exact / (1 - plain[0])  # Keras 3 gives each replica its part of the loss
    assert parts == pytest.approx(round(parts), rel=1e-5)
    for dtype, (weights, row) in zip(("bfloat16", "float16"), others, strict=True):
        low = rounded(sum(rounded(each / round(parts), dtype) for each in PAIRS[1]), dtype)
        assert weights == [pytest.approx(1 - 0.1 * low, abs=2e-6)] * 2
        assert abs(low * round(parts) - exact) > 1e-3
        assert (said, row) == ("reduced in the dtype of each gradient", f"reduced in {dtype}")


def test_two_workers(worker_results):
    """Compiled steps, then steps of which XLA runs each worker's forward and backward pass."""
    assert [trained for trained, *_ in worker_results] == [[0.8, 2.0, 4, 1, [False, True]]] * 2


def test_fit_on_two_workers():
    """Keras 2 trains as it does natively, and the first worker records; Keras 3 does not run ``fit`` there, which is
    said before it fails.
    """
    lines = on_two_workers(WORKER.partition("amp = ")[0] + FITTING)
    if hasattr(keras.mixed_precision.LossScaleOptimizer, "scale_loss"):
        expected, refused, records = [], "Keras 3 does not run it under a MultiWorkerMirroredStrategy", [0, 0]
    else:
        expected, refused, records = [0.4, 2], "", [RECORDS, 0]
    for trained, said, _ in lines:
        assert trained == expected
        assert refused in said
        assert bool(refused) == bool(said)
    assert [count for *_, count in lines] == records


def test_native_steps_go_on_from_the_moments_of_a_closed_session(results):
    """Each replica has its own copy of them, as of the moments that the optimizer makes itself."""
    alone, together = results["closed_moments"]["eager"]
    assert together == pytest.approx(alone, abs=1e-6)
    assert alone < 0.99


def test_refusals(results):
    outside, step, strange, optimizer, model, both, later, fit = results["refusals"]["eager"]
    assert outside.startswith("UnsupportedError: amp.scale_loss: the model is mirrored by a MirroredStrategy")
    assert step.startswith("UnsupportedError: amp.step: the model is mirrored")
    assert "MirroredStrategy runs 2 replicas, and the model was made outside its scope" in strange
    assert "SGD was made under" in optimizer
    assert "SGD was made under MirroredStrategy, and the model under no strategy" in model
    assert "belong to 2 tf.distribute strategies" in both
    assert "make another Amp" in later
    assert fit.startswith(
        "UnsupportedError: model.fit: model.compile(jit_compile=True) compiles the step of all replicas"
    )
