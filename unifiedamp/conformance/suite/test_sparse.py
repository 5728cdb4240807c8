"""Sparse gradients come out right, or are refused by an error of ours; nothing trains wrongly."""

from dataclasses import replace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.conformance.recorded import Kept

TABLE = np.ones((6, 2), np.float32)
LIMITS = {"value": 1.5, "norm": 2.0}


class Embedding:
    """A table of ones whose rows are picked, trained by SGD."""

    def __init__(self, harness, form="eager", clip=None, lr=0.5, **options):
        self.harness, self.clip = harness, clip
        self.amp = session(harness, form, **{"loss_scale": 8.0} | options)
        with self.amp.scope():
            model, optimizer = harness.sparse(TABLE, lr)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self._step = compiled(self.amp, form, self._train)

    def _train(self, rows, factor):
        self.amp.backward(lambda: self.model(rows) * factor, self.optimizer)
        if self.clip == "norm":
            self.amp.clip_grad_norm(self.optimizer, LIMITS["norm"])
        if self.clip == "value":
            self.amp.clip_grad_value(self.optimizer, LIMITS["value"])
        self.amp.step(self.optimizer)

    def feed(self, rows, factor=1.0):
        self._step(self.amp.to_native(np.array(rows, np.int32)), factor)

    def table(self):
        (table,) = self.harness.parameters(self.model).values()
        return table


def by_hand(*batches, clip=None):
    """The table after steps on batches of micro-batches of rows; rows of a batch count as often as they come."""
    table = TABLE.astype(np.float64)
    for micro in batches:
        gradient = sum(np.bincount(rows, minlength=6) for rows in micro)[:, None] * np.ones((1, 2)) / len(micro)
        if clip == "norm":
            gradient = gradient * min(1.0, LIMITS["norm"] / np.linalg.norm(gradient))
        if clip == "value":
            gradient = gradient.clip(-LIMITS["value"], LIMITS["value"])
        table = table - 0.5 * gradient
    return table


def right_or_refused(run, expected):
    """Run; an error of ours is an answer, as long as nothing has moved."""
    try:
        found = run()
    except ua.AmpError as refusal:
        pytest.skip(f"refused: {refusal}")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("clip", [None, "value", "norm"])
def test_rows_picked_several_times(harness, form, clip):
    """A row picked twice has twice the gradient, and that sum is what is clipped."""

    def run():
        embedding = Embedding(harness, form, clip)
        for rows in ([1, 1, 1, 4], [0, 1, 0, 0]):
            embedding.feed(rows)
        return embedding.table()

    right_or_refused(run, by_hand([[1, 1, 1, 4]], [[0, 1, 0, 0]], clip=clip))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_in_a_row_skips_the_step(harness, form, bad):
    def run():
        embedding = Embedding(harness, form, loss_scale=ua.DynamicLossScale(initial_scale=8.0))
        embedding.feed([1, 1, 2], bad)
        np.testing.assert_array_equal(embedding.table(), TABLE)
        assert (embedding.amp.applied_steps, embedding.amp.skipped_steps, embedding.amp.loss_scale) == (0, 1, 4.0)
        embedding.feed([2, 2, 3])
        return embedding.table()

    right_or_refused(run, by_hand([[2, 2, 3]]))


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_rows_of_master_weights(harness, policy, window):
    """Divided by the scale and applied in float32: the true gradients are no numbers of float16. Those of a window's
    micro-batches are added.
    """
    if window > 1 and not harness.capabilities().feature("accumulation"):
        pytest.skip("the backend declares no accumulation")
    true, lr = 1.125 * 2.0**-22, 2.0**12
    pure = harness.pure_policies[policy]
    pure = replace(ua.Policy.parse(pure) if isinstance(pure, str) else pure, output_dtype="float32")

    def run():
        options = {"policy": pure, "master_weights": True, "loss_scale": 2.0**20, "accumulate_steps": window}
        embedding = Embedding(harness, lr=lr, **options)
        embedding.feed([0, 2, 2], true)
        embedding.feed([2, 4], true)
        return next(iter(embedding.amp.master_weights(embedding.model).values()))

    counts = np.float64([1, 0, 3, 0, 1, 0])
    right_or_refused(run, TABLE - (lr * true * counts / window)[:, None])


@pytest.mark.needs("accumulation")
def test_a_window_of_rows(harness, form):
    def run():
        embedding = Embedding(harness, form, accumulate_steps=2)
        for rows in ([1, 1, 4, 0], [2, 1, 0, 0], [3, 3, 3, 3], [3, 3, 3, 5]):
            embedding.feed(rows)
        return embedding.table()

    right_or_refused(run, by_hand([[1, 1, 4, 0], [2, 1, 0, 0]], [[3, 3, 3, 3], [3, 3, 3, 5]]))


@pytest.mark.needs("recording")
def test_rows_that_were_not_picked_are_not_recorded(harness):
    embedding, kept = Embedding(harness), Kept()
    with embedding.amp.record(kept):
        embedding.feed([0, 2, 5])
    ((gradient,),) = [record["gradients"].values() for record in kept.of("step")]
    assert (gradient["true"]["zero"], gradient["true"]["exponents"]) == (0, {"0": 6})


@pytest.mark.parametrize("scale", [1.0, "none"])
def test_without_a_scale(harness, scale):
    def run():
        embedding = Embedding(harness, loss_scale=scale)
        embedding.feed([5, 5, 2])
        return embedding.table()

    right_or_refused(run, by_hand([[5, 5, 2]]))
