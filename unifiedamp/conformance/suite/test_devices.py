"""Every device and every rank decides alike."""

import math

import pytest

import unifiedamp as ua

pytestmark = pytest.mark.needs("several_devices")


@pytest.mark.parametrize("gradients", [(math.inf, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_overflow_on_one_device_skips_on_all(harness, gradients):
    assert harness.device_run(gradients, ua.DynamicLossScale(initial_scale=4.0)) == [(1.0, 1), (1.0, 1)]


def test_finite_gradients_are_applied_on_all(harness):
    (first, skipped), (second, _) = harness.device_run((1.0, 1.0), ua.DynamicLossScale(initial_scale=4.0))
    assert first == second != 1.0
    assert skipped == 0
