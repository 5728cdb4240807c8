"""Where two backends part, and where they differ by rounding alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from unifiedamp.workloads.compare import parity


def trace(scale=1.0, fault=None, size=1.0):
    """Three steps of four places each; the value at ``fault`` (step, place) is off by ``scale``."""
    rng = np.random.default_rng(0)
    entries = []
    for step, place in itertools.product((1, 2, 3), range(4)):
        value = rng.standard_normal(50)
        if (step, place) == fault:
            value = value * scale
        entries.append(parity.Entry(step, f"layer{place}", "gradient", place + 1, 0.0, 0.0, value * size))
    return entries


@pytest.mark.parametrize(("dtype", "rounding", "off"), [("float32", 1e-7, 1e-3), ("bfloat16", 4e-3, 0.5)])
def test_the_first_place_beyond_rounding_is_named(dtype, rounding, off):
    verdict = parity.judge(trace(), trace(1 + off, (2, 1)), dtype, 256)
    assert (verdict.diverged.step, verdict.diverged.layer) == (2, "layer1")
    assert verdict.diverged.distance == pytest.approx(off / (1 + off), rel=1e-6)
    fine = parity.judge(trace(), trace(1 + rounding, (2, 1)), dtype, 256)
    assert fine.diverged is None
    assert (fine.closest.step, fine.closest.layer) == (2, "layer1")


def test_what_a_coarse_dtype_explains_a_fine_one_does_not():
    pair = trace(), trace(1.003, (1, 0))
    assert parity.judge(*pair, "bfloat16", 256).diverged is None
    assert parity.judge(*pair, "float16", 256).diverged is None
    assert parity.judge(*pair, "float32", 256).diverged.layer == "layer0"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_on_one_side_parts(bad):
    assert parity.judge(trace(), trace(bad, (3, 2)), "bfloat16", 256).diverged.step == 3
    assert parity.judge(trace(bad, (3, 2)), trace(bad, (3, 2)), "bfloat16", 256).diverged is None


def test_zeros_agree_and_counts_are_exact():
    assert parity.judge(trace(size=0.0), trace(size=0.0), "float32", 1).diverged is None
    one, other = (parity.Entry(1, "optimizer", "applied steps", 0, 0.0, 0.0, np.array([n])) for n in (1.0, 0.0))
    assert parity.judge([one], [other], "bfloat16", 1).diverged.what == "applied steps"
