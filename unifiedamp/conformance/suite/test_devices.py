"""Every device and every rank decides alike."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.recording.counts import Distribution

pytestmark = pytest.mark.needs("several_devices")


@pytest.mark.parametrize("gradients", [(math.inf, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_overflow_on_one_device_skips_on_all(harness, gradients):
    assert harness.device_run(gradients, ua.DynamicLossScale(initial_scale=4.0)) == [(1.0, 1), (1.0, 1)]


def test_finite_gradients_are_applied_on_all(harness):
    (first, skipped), (second, _) = harness.device_run((1.0, 1.0), ua.DynamicLossScale(initial_scale=4.0))
    assert first == second != 1.0
    assert skipped == 0


TINY = 2.0**-13
"""A step from 1 that both 16-bit formats round away, and float32 does not."""


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("gradients", [(0.5, 0.5), (0.25, 0.75), (0.0, 1.0)], ids=["alike", "apart", "one"])
def test_masters_of_all_devices_are_one(harness, policy, gradients):
    """Tiny updates add up on each, a skip leaves them alone on each, and parameters follow the masters on each."""
    steps = [gradients] * 12 + [(1.0, math.inf), (math.nan, 1.0)] + [gradients] * 12
    answers = harness.device_steps(harness.pure_policies[policy], steps, ua.DynamicLossScale(initial_scale=4.0))
    low = float(np.float16(1.0 - 24 * TINY)) if policy == "float16" else 1.0 - 2.0**-8
    assert answers == [(low, 1.0 - 24 * TINY)] * 2


@pytest.mark.needs("master_weights")
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_masters_gather_what_16_bits_would_lose(harness, policy):
    """The sum over devices is made in float32, which holds 8 + 2**-9."""
    answers = harness.device_steps(harness.pure_policies[policy], [(8.0, 2.0**-9)], ua.StaticLossScale(4.0))
    assert [master for _, master in answers] == [1.0 - TINY * (8.0 + 2.0**-9)] * 2


@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16"])
def test_a_device_without_a_batch_adds_nothing(harness, policy):
    """Not the gradient of a step before, either; and it follows the others."""
    if policy != "float32" and not harness.capabilities().feature("master_weights"):
        pytest.skip("the backend declares no master_weights")
    chosen = policy if policy == "float32" else harness.pure_policies[policy]
    steps = [(1.0, 2.0), (4.0, None), (None, 8.0), (1.0, None), (1.0, None), (None, math.inf), (2.0, 2.0)]
    answers = harness.device_steps(chosen, steps, ua.DynamicLossScale(initial_scale=4.0))
    assert [trained for _, trained in answers] == [1.0 - 21 * TINY] * 2
    assert answers[0] == answers[1]


@pytest.mark.parametrize("gradients", [(8.0, 8.0), (16.0, -2.0), (0.5, 8.0)], ids=["alike", "apart", "one"])
def test_what_was_summed_is_clamped_on_all(harness, gradients):
    scale = ua.DynamicLossScale(initial_scale=4.0)
    answers = harness.device_steps("float32", [gradients, (math.inf, 1.0), gradients], scale, clip_value=2.0)
    assert answers == [(1.0 - 4 * TINY, 1.0 - 4 * TINY)] * 2


@pytest.mark.needs("recording")
@pytest.mark.parametrize("gradients", [(0.5, 4.0), (4.0, 0.5), (2.0, 2.0)])
def test_what_is_recorded_is_of_all(harness, gradients):
    """The numbers of each device are counted, whatever they sum to."""
    counts = harness.recorded_device_run(gradients, ua.StaticLossScale(8.0))
    (found,) = [Distribution.of(each) for each in counts.values()]
    assert found.exponents == {math.log2(g): gradients.count(g) for g in gradients}
    assert (found.zero, found.inf, found.nan) == (0, 0, 0)
