"""From turns to ratios, and from rows to advice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unifiedamp.errors import AmpError
from unifiedamp.workloads.compare.advice import advise
from unifiedamp.workloads.compare.rows import Row, Task, set_ratios, tasks
from unifiedamp.workloads.interleaved import interleave, ratio


def test_turns_alternate_and_a_failed_one_drops_out():
    log, lost = [], []

    def turn(name, rates):
        left = iter(rates)

        def run():
            log.append(name)
            rate = next(left)
            if rate is None:
                raise AmpError("gone")
            return rate

        return run

    found = interleave({"a": turn("a", [1.0] * 4), "b": turn("b", [2.0, None]), "c": turn("c", [3.0] * 4)}, 4,
                     lambda key, error: lost.append((key, str(error))))  # fmt: skip
    assert "".join(log) == "abc" + "cba" + "ac" + "ca"
    assert found == {"a": [1.0] * 4, "c": [3.0] * 4}
    assert lost == [("b", "gone")]


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=1, max_size=9))
def test_a_ratio_is_that_of_rounds(pairs):
    mine, theirs = zip(*pairs, strict=True)
    found = ratio(mine, theirs)
    each = sorted(a / b for a, b in pairs)
    assert (found.low, found.high) == (each[0], each[-1])
    assert found.value == pytest.approx(float(np.median(each)))
    assert found.beyond_noise == (each[0] > 1 or each[-1] < 1)


def group(*rows, **options):
    """Finished rows from (policy, rates, accuracy) under one backend, with ratios."""
    made = []
    for policy, rates, accuracy in rows:
        row = Row(Task("torch", policy, "default", 64), "done", batch_size=64, rates=rates, accuracy=accuracy, loss=0.1)
        row.test_images, row.peak_memory = options.get("test_images", 10000), options.get("memory", {}).get(policy, 100)
        made.append(row)
    set_ratios(made)
    return made


BASE = ("float32", [100.0, 110.0], 0.9)


def test_ratios_are_to_float32_of_the_same_round():
    base, other = group(BASE, ("mixed_bfloat16", [200.0, 330.0], 0.9))
    assert (base.ratio, other.ratio, other.ratio_low, other.ratio_high) == (1.0, 2.5, 2.0, 3.0)
    assert other.baseline == "float32, batch size 64"
    (alone,) = group(("mixed_bfloat16", [1.0], 0.9))
    assert alone.ratio is None


FASTER = "mixed_bfloat16: 1.9x faster than float32, accuracy -0.1 points: use it"
WORSE = "accuracy -10.0 points: too much is lost, stay with float32 or see unifiedamp tune"
SLOWER = "mixed_bfloat16: 0.50x the speed of float32, accuracy +0.0 points: stay with float32"
NOISE, SMALLER = "no gain beyond the noise, stay with float32", "use it where memory is short (40% less)"
FEW = "2 rounds are too few to be sure, repeat it with --rounds 5 or more"
BF16, FP16 = "mixed_bfloat16", "mixed_float16"


@pytest.mark.parametrize(
    ("rows", "options", "wanted"),
    [
        ([BASE, (BF16, [190.0, 209.0], 0.899)], {}, FASTER),
        ([BASE, (FP16, [190.0, 209.0], 0.8)], {}, WORSE),
        # Of a hundred images, two more or less say nothing.
        ([BASE, (FP16, [190.0, 209.0], 0.88)], {"test_images": 100}, "use it"),
        ([BASE, (FP16, [190.0, 209.0], 0.88)], {"test_images": 10000}, "see unifiedamp tune"),
        ([BASE, (BF16, [50.0, 55.0], 0.9)], {}, SLOWER),
        ([BASE, (BF16, [120.0, 109.0], 0.9)], {}, NOISE),
        ([BASE, (BF16, [110.0, 121.0], 0.9)], {}, FEW),
        ([("float32", [100.0] * 5, 0.9), (BF16, [110.0] * 5, 0.9)], {}, "use it"),
        ([BASE, (BF16, [120.0, 109.0], 0.9)], {"memory": {BF16: 60}}, SMALLER),
        ([BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.9)], {}, "points: use it"),
        ([BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.7)], {}, "points: use it"),
        ([BASE], {}, "nothing beside float32 was run"),
        ([(BF16, [150.0], 0.9)], {}, "no finished float32 row to compare with"),
    ],
)
def test_advice_follows_from_the_figures(rows, options, wanted):
    (said,) = advise(group(*rows, **options))
    assert said.startswith("torch, compile default, batch size 64: ")
    assert said.endswith(wanted)


def test_advice_names_the_fastest_that_is_good_enough():
    (said,) = advise(group(BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.9)))
    assert said.endswith("mixed_float16: 1.8x faster than float32, accuracy +0.0 points: use it")
    (said,) = advise(group(BASE, (BF16, [150.0, 165.0], 0.9), (FP16, [180.0, 198.0], 0.7)))
    assert said.endswith("mixed_bfloat16: 1.5x faster than float32, accuracy +0.0 points: use it")


def test_advice_where_the_others_did_not_run():
    rows = group(BASE)
    rows += [Row(Task("torch", "mixed_float16", "default", 64), "refused", "no float16 here")]
    rows += [Row(Task("torch", "mixed_bfloat16", "default", 64), "failed", "out of memory")]
    (said,) = advise(rows)
    assert said.endswith("stay with float32: mixed_float16 cannot run here; mixed_bfloat16 failed")


def test_a_group_for_each_backend_mode_and_size():
    found = tasks(["a", "b"], ["float32", "mixed_float16"], ["off", "max"], [8, 0])
    assert len(found) == 8
    assert all([task.policy for task in each] == ["float32", "mixed_float16"] for each in found)
    assert len({each[0].group for each in found}) == 8
