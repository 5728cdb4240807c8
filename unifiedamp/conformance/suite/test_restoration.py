"""Leaving a scope or a region, also by an exception and in threads, leaves the process as it was found."""

import threading

import pytest

from unifiedamp.conformance.driver import session, settled_state

MIXED = "mixed_bfloat16"


@pytest.mark.parametrize("region", ["scope", "autocast", "inference"])
@pytest.mark.parametrize("failing", [False, True])
def test_state_is_as_found(harness, region, failing):
    amp = session(harness, policy=MIXED)
    before = settled_state(harness)
    try:
        with getattr(amp, region)():
            if region != "scope":
                assert harness.run_op(harness.low_precision_op) == "bfloat16"
            if failing:
                raise KeyError("inside")
    except KeyError:
        assert failing
    assert harness.global_state() == before
    assert harness.run_op(harness.low_precision_op) == "float32"


def test_regions_nest(harness):
    amp = session(harness, policy=MIXED)
    with amp.autocast():
        assert harness.run_op(harness.low_precision_op) == "bfloat16"
        with amp.autocast(enabled=False):
            assert harness.run_op(harness.low_precision_op) == "float32"
            with amp.autocast():
                assert harness.run_op(harness.low_precision_op) == "bfloat16"
            assert harness.run_op(harness.low_precision_op) == "float32"
        with amp.autocast(policy="float32"):
            assert harness.run_op(harness.low_precision_op) == "float32"
        assert harness.run_op(harness.low_precision_op) == "bfloat16"


def test_another_threads_region_is_not_ours(harness):
    amp = session(harness, policy=MIXED)
    seen = {}
    inside, done = threading.Event(), threading.Event()

    def other():
        with amp.autocast():
            seen["inside"] = harness.run_op(harness.low_precision_op)
            inside.set()
            done.wait(30)
        seen["after"] = harness.run_op(harness.low_precision_op)

    thread = threading.Thread(target=other)
    before = settled_state(harness)
    thread.start()
    assert inside.wait(30)
    seen["here"] = harness.run_op(harness.low_precision_op)
    done.set()
    thread.join(30)
    assert seen == {"inside": "bfloat16", "here": "float32", "after": "float32"}
    assert harness.global_state() == before


def test_two_policies_in_one_process(harness):
    mixed, plain = session(harness, policy=MIXED), session(harness, policy="float32")
    with mixed.autocast():
        assert harness.run_op(harness.low_precision_op) == "bfloat16"
        with plain.autocast():
            assert harness.run_op(harness.low_precision_op) == "float32"
        assert harness.run_op(harness.low_precision_op) == "bfloat16"
