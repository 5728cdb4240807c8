"""Updates of bfloat16 parameters without master weights: small ones arrive, skipped ones change nothing."""

import json
import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run

pytestmark = pytest.mark.needs("weight_updates")
TINY = 2.0**-12
KINDS = ["stochastic", "kahan"]


def run_of(harness, form, kind, **options):
    """A probe of weight 1 under SGD: each gradient of -1 adds ``TINY``, which bfloat16 rounds away."""
    policy = f"bfloat16;update={kind}" if kind else "bfloat16"
    return probe_run(harness, form, **{"policy": policy, "lr": TINY} | options)


def true(run):
    return [float(value[0]) for value in run.amp.master_weights(run.model).values()]


@pytest.mark.parametrize(("kind", "bound"), [(None, None), ("stochastic", 0.02), ("kahan", 2.0**-14)])
def test_a_thousand_small_updates_arrive(harness, kind, bound):
    """The bound of stochastic rounding is over five standard deviations of the mean of 64 weights."""
    run = run_of(harness, "eager", kind, values=(1.0,) * 64)
    for _ in range(1000):
        run.feed(*[-1.0] * 64)
    expected = 1.0 if kind is None else 1.0 + 1000 * TINY
    assert np.mean(true(run)) == pytest.approx(expected, abs=bound or 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_changes_nothing(harness, form, kind):
    """Neither weights nor compensation nor the random numbers: with skips between, the weights are the same."""
    plain, skipping = (run_of(harness, form, kind, values=(1.0, 3.0), loss_scale=1.0) for _ in range(2))
    for _ in range(6):
        plain.feed(-1.0, 2.0)
        skipping.feed(-1.0, 2.0)
        before = skipping.weights(), true(skipping), skipping.amp.state_dict()["update"]
        skipping.feed(math.inf, 1.0)
        assert (skipping.weights(), true(skipping), skipping.amp.state_dict()["update"]) == before
    assert skipping.weights() == plain.weights()
    assert true(skipping) == true(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_bit_for_bit(harness, form, kind):
    straight, first, second = (run_of(harness, form, kind, values=(1.0, -3.0)) for _ in range(3))
    for number in range(12):
        straight.feed(-1.0, 0.7)
        if number == 6:
            second.amp.load_master_weights(second.model, first.amp.master_weights(first.model))
            second.amp.load_state_dict(json.loads(json.dumps(first.amp.state_dict())))
        (first if number < 6 else second).feed(-1.0, 0.7)
    assert (second.weights(), true(second)) == (straight.weights(), true(straight))


def test_kahan_keeps_what_rounding_leaves_out(harness, form):
    """The sum of weight and compensation follows float64 within 2**-17 of each weight and step."""
    run = run_of(harness, form, "kahan", values=(1.0, -5.0), lr=0.001)
    expected = np.float64([1.0, -5.0])
    for step in range(20):
        gradients = np.float64([1.0, 0.5 * (step % 3)])
        run.feed(*gradients)
        expected -= 0.001 * gradients
    np.testing.assert_allclose(true(run), expected, rtol=20 * 2.0**-17)


def test_refused_with_masters(harness):
    with pytest.raises(ua.PolicyError, match="leave out one of the two"):
        ua.Amp(harness.backend, "bfloat16;update=kahan", master_weights=True)
