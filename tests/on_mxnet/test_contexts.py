"""Batches that do not reach every context, and what becomes of the copies."""

import numpy as np
import pytest
from products import PURE, SCALE, START, master, product, session, trainer_of

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import dtype_name, from_numpy, gluon, mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
ONES = np.ones(4, np.float32)
FORMS = pytest.mark.parametrize("compiled", [False, True])
PLAIN = {"policy": "float32", "master_weights": False}
MASTERS = {"policy": PURE, "master_weights": True}
SETTINGS = {
    "scaled": PLAIN,
    "unscaled": PLAIN | {"loss_scale": "none"},
    "master weights": MASTERS,
    "bfloat16": {"policy": "mixed_bfloat16", "master_weights": False},
}


def two_copies(lr=1.0, kind="sgd", grad_req=None, **options):
    amp = session(**PLAIN | options)
    model = product(contexts=CONTEXTS)
    if grad_req:
        model.w.grad_req = grad_req
    return amp, *amp.prepare(model, trainer_of(model, kind, lr))


def losses_of(model, *values):
    """The losses of the contexts that get a batch; None: it gets none."""
    return [model(from_numpy(x, ctx)) for ctx, x in zip(CONTEXTS, values, strict=True) if x is not None]


def feed(amp, model, trainer, *values, between=None, compiled=False):
    def step():
        with amp.autocast():
            losses = losses_of(model, *values)
        with amp.scale_loss(losses, trainer) as scaled:
            scaled.backward()
        if between is not None:
            between()
        return amp.step(trainer)

    return (amp.compile(step) if compiled else step)()


def copies(model, trainer):
    """Each context's float32 weights: masters where there are some."""
    if dtype_name(model.w.data(CONTEXTS[0])) == "float32":
        return [model.w.data(ctx).asnumpy() for ctx in CONTEXTS]
    pairs = [updater.states[0] for updater in trainer._updaters]  # plain SGD keeps a master and None
    return [next(part for part in pair if part is not None).asnumpy() for pair in pairs]


def check(model, trainer, expected):
    first, second = copies(model, trainer)
    assert np.array_equal(first, second)
    assert np.array_equal(*(model.w.data(ctx).asnumpy() for ctx in CONTEXTS))
    np.testing.assert_allclose(first, expected, rtol=1e-6)


@FORMS
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("idle", [0, 1])
def test_a_context_without_a_batch_adds_nothing(setting, compiled, idle):
    """Oracle: float64 numpy; the gradient of w is the sum of the batches that were there."""
    amp, model, trainer = two_copies(0.125, **SETTINGS[setting])
    busy = [None if place == idle else ONES * 2 for place in range(2)]
    expected = np.array(START)
    for values in ((ONES, ONES), busy, busy, (ONES, ONES)):
        assert feed(amp, model, trainer, *values, compiled=compiled).applied
        expected = expected - 0.125 * sum(x.astype(np.float64) for x in values if x is not None)
        check(model, trainer, expected)


@FORMS
@pytest.mark.parametrize("setting", SETTINGS)
def test_micro_batches_on_one_context(setting, compiled):
    amp, model, trainer = two_copies(0.125, accumulate_steps=2, **SETTINGS[setting])
    windows = [
        ((ONES, ONES), (ONES, ONES)),
        ((ONES * 2, None), (ONES * 4, None)),
        ((ONES * 2, ONES), (None, ONES * 4)),
        ((ONES * 2, None), (None, ONES * 4)),
    ]
    expected = np.array(START)
    for window in windows:
        for values in window:
            outcome = feed(amp, model, trainer, *values, compiled=compiled)
        assert outcome.applied
        total = sum(x.astype(np.float64) for values in window for x in values if x is not None)
        expected = expected - 0.125 * total / 2
        check(model, trainer, expected)


@FORMS
@pytest.mark.parametrize("late", [False, True])
def test_the_users_own_grad_req_add(compiled, late):
    amp, model, trainer = two_copies(0.125, grad_req=None if late else "add")
    if late:
        model.w.grad_req = "add"
    expected = np.array(START)
    for values in ((ONES, ONES), (ONES * 2, None), (None, ONES * 4)):
        feed(amp, model, trainer, *values, compiled=compiled)
        expected = expected - 0.125 * sum(x.astype(np.float64) for x in values if x is not None)
        check(model, trainer, expected)


@FORMS
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("second", [None, ONES * 3])
def test_the_norm_is_that_of_the_sum(setting, compiled, second):
    amp, model, trainer = two_copies(1.0, **SETTINGS[setting])
    feed(amp, model, trainer, ONES, ONES)
    norms = []
    before = copies(model, trainer)[0].astype(np.float64)
    total = ONES.astype(np.float64) * (5 if second is None else 8)
    clip = lambda: norms.append(amp.clip_grad_norm(trainer, 1.0).asnumpy())  # noqa: E731
    feed(amp, model, trainer, ONES * 5, second, between=clip, compiled=compiled)
    np.testing.assert_allclose(norms[0].reshape(()), np.linalg.norm(total), rtol=1e-6)
    check(model, trainer, before - total / np.linalg.norm(total))


@FORMS
@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "unscaled"])
@pytest.mark.parametrize("idle", [0, 1])
def test_an_inf_on_the_busy_context_skips_both_and_is_forgotten(setting, compiled, idle):
    amp, model, trainer = two_copies(0.125, **SETTINGS[setting])
    feed(amp, model, trainer, ONES, ONES)
    before = copies(model, trainer)[0]
    bad = [None if place == idle else ONES * np.inf for place in range(2)]
    assert not feed(amp, model, trainer, *bad, compiled=compiled).applied
    check(model, trainer, before)
    # The inf still stands in the busy context's array when the next batch reaches the other one alone.
    good = [ONES if place == idle else None for place in range(2)]
    assert feed(amp, model, trainer, *good, compiled=compiled).applied
    check(model, trainer, before - 0.125)


@FORMS
def test_a_sum_that_overflows_is_skipped(compiled):
    """Each context's gradient is finite; what would be applied is not."""
    amp, model, trainer = two_copies(1.0)
    before = copies(model, trainer)[0]
    large = ONES * np.float32(2.0**125)
    assert not feed(amp, model, trainer, large, large, compiled=compiled).applied
    check(model, trainer, before)


@FORMS
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_optimizer_states_and_counts_agree(kind, compiled):
    amp, model, trainer = two_copies(0.01, kind=kind)
    for values in ((ONES, ONES), (ONES, None), (None, ONES), (ONES * np.inf, None), (ONES, None)):
        feed(amp, model, trainer, *values, compiled=compiled)
    assert trainer.optimizer.num_update == amp.applied_steps == 4
    assert np.array_equal(*copies(model, trainer))
    counts = trainer.optimizer._all_index_update_counts
    assert [counts[place] for place in range(2)] == [{0: 4}, {0: 4}]


def test_a_layer_that_one_context_left_out(array):
    """Both contexts get a batch, and one of them goes past the second layer."""
    amp = ua.Amp("mxnet", "float32", loss_scale=SCALE)
    first, second = product(contexts=CONTEXTS), product(contexts=CONTEXTS)
    params = [first.w, second.w]
    trainer = gluon.Trainer(params, "sgd", {"learning_rate": 0.125})
    amp.prepare(first, second, trainer)
    for both in (True, False):
        with amp.autocast():
            losses = [first(array(ONES, ctx)) for ctx in CONTEXTS]
            losses[0] = losses[0] + second(array(ONES, CONTEXTS[0]))
            if both:
                losses[1] = losses[1] + second(array(ONES, CONTEXTS[1]))
        with amp.scale_loss(losses, trainer) as scaled:
            scaled.backward()
        assert amp.step(trainer).applied
    for model, times in ((first, 4), (second, 3)):
        for ctx in CONTEXTS:
            np.testing.assert_allclose(model.w.data(ctx).asnumpy(), np.array(START) - 0.125 * times, rtol=1e-6)


def test_masters_of_the_session_are_the_first_contexts():
    amp, model, trainer = two_copies(0.125, **MASTERS)
    feed(amp, model, trainer, ONES, None)
    feed(amp, model, trainer, None, ONES)
    np.testing.assert_allclose(master(amp, model), np.array(START) - 0.25, rtol=1e-6)


@pytest.mark.parametrize("options", [PLAIN, MASTERS])
def test_contexts_that_share_no_kvstore_are_refused(options):
    amp = session(**options)
    model = product(contexts=CONTEXTS)
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    with pytest.raises(ua.PrepareError, match=r"kvstore=None.*2 contexts.*kvstore='device'"):
        amp.prepare(model, trainer)


def test_one_context_needs_no_kvstore():
    amp = session(**PLAIN)
    model = product()
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.125}, kvstore=None)
    model, trainer = amp.prepare(model, trainer)
    amp.backward(lambda: model(amp.to_native(ONES)), trainer)
    assert amp.step(trainer).applied
    np.testing.assert_allclose(model.w.data().asnumpy(), np.array(START) - 0.125, rtol=1e-6)


@pytest.mark.parametrize("late", [False, True])
def test_a_closed_session_gives_grad_req_add_back(late):
    amp, model, trainer = two_copies(0.125, grad_req=None if late else "add")
    if late:
        model.w.grad_req = "add"
    feed(amp, model, trainer, ONES, ONES)
    amp.close()
    assert model.w.grad_req == "add"


def test_a_record_counts_the_gradients_of_all_contexts():
    amp, model, trainer = two_copies(0.125)
    records = []
    with amp.record(records.append):
        feed(amp, model, trainer, ONES, ONES * 2)
    (counts,) = next(record for record in records if record["kind"] == "step")["gradients"].values()
    assert counts["true"]["exponents"] == {"0": 4, "1": 4}


def test_a_record_tells_the_context_that_overflowed_and_the_sum_that_did():
    amp, model, trainer = two_copies(0.125)
    records = []
    with amp.record(records.append, every=1):
        for values in ((ONES, ONES), (ONES, ONES * np.inf), (ONES * 1e38, ONES * 1e38)):  # at scales 4, 4 and 2
            feed(amp, model, trainer, *values)
    assert [record["first"] for record in records if record["kind"] == "ranks"] == [
        None, {"during": "forward", "ranks": [1], "name": ""}, {"during": "reduction", "ranks": [], "name": ""},
    ]  # fmt: skip
    assert [record["applied"] for record in records if record["kind"] == "step"] == [True, False, False]


def in_dtype(values, dtype):
    """Round to a dtype by numpy alone, ties to even."""
    if dtype == "bfloat16":
        bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype).astype(np.float64)


def sum_in(dtype, *values):
    """Round, then add and round; MXNet's bfloat16 sums round toward zero."""
    total = sum(in_dtype(each, dtype) for each in values)
    if dtype != "bfloat16":
        return in_dtype(total, dtype)
    return (np.float32(total).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


@FORMS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_contexts_sum_in_the_dtype(dtype, compiled):
    """An overflow that the sum made in float16 skips the step on both; a second session goes on with the Trainer."""
    pair = (np.float32([1 + 2**-9, 3.1, -0.1, 0.7]), np.float32([3 * 2**-10, 7.7, -0.1, 0.1]))
    amp, model, trainer = two_copies(0.125, reduce_dtype=dtype, loss_scale=1.0)
    total = sum_in(dtype, *pair)
    expected = np.array(START) - 0.125 * total
    assert feed(amp, model, trainer, *pair, compiled=compiled).applied
    check(model, trainer, expected)
    large = np.float32([0, 40000.0, 0, 0])
    assert feed(amp, model, trainer, large, large, compiled=compiled).applied == (dtype != "float16")
    expected = expected - 0.125 * (0 if dtype == "float16" else sum_in(dtype, large, large))
    check(model, trainer, expected)
    rows = {row.setting: row.value for row in amp.explain()}
    assert rows["gradients of ranks"] == f"reduced in {dtype}"
    assert (rows["world size"], rows["process group"]) == ("2", "cpu(0), cpu(1)")
    amp.close()
    again = session(**PLAIN, reduce_dtype=dtype, loss_scale=1.0)
    model, trainer = again.prepare(model, trainer)
    assert feed(again, model, trainer, *pair, compiled=compiled).applied
    check(model, trainer, expected - 0.125 * total)


def test_the_dtypes_of_the_sums_differ():
    """A sum in the wrong dtype would not pass."""
    low = [sum_in(dtype, np.float64([3.1]), np.float64([7.7])) for dtype in ("float32", "float16", "bfloat16")]
    assert min(abs(low[0] - low[1]), abs(low[1] - low[2]), abs(low[0] - low[2])) > 1e-4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (MASTERS | {"reduce_dtype": "bfloat16"}, "with master_weights=True gradients are summed in float32"),
        (PLAIN | {"reduce_dtype": "bfloat16", "kvstore": "dist_sync"}, "workers of kvstore 'dist_sync' sum gradients"),
    ],
    ids=["master weights", "workers"],
)
def test_what_is_summed_otherwise_is_refused(options, said):
    kvstore = options.pop("kvstore", "device") if "kvstore" in options else "device"
    amp, model = session(**options), product(contexts=CONTEXTS)
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
    with pytest.raises(ua.PrepareError, match=said):
        amp.prepare(model, trainer)
