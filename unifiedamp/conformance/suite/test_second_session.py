"""A session that prepares the optimizer of an open session trains as one session would, or refuses it by name."""

import re

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

LR = 2.0**-13
"""A step from 1 that bfloat16 rounds away."""
KINDS = {
    "scale": ("float32", "", {"loss_scale": 4.0}, None),
    "masters": ("bfloat16", "", {"master_weights": True}, "master_weights"),
    "kahan": ("bfloat16", ";update=kahan", {}, "weight_updates"),
    "moments": ("float32", ";state_dtype=bfloat16", {}, "state_dtype"),
}
"""Name → parameters, the rest of the policy, options, and the feature that they need."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_session_trains_right_or_is_refused(harness, kind):
    params, rest, options, feature = KINDS[kind]
    if feature and not harness.capabilities().feature(feature):
        pytest.skip(f"the backend declares no {feature}")
    options = {"policy": f"{harness.pure_policies.get(params, params)}{rest}", **options}

    def make(model):
        with harness.left_to_prepare():
            return harness.sgd([model], LR, 0.5)

    run = probe_run(harness, make=make, **options)
    run.feed(1.0)
    amp, model, optimizer = session(harness, **options), run.model, run.optimizer
    refusal = None
    try:
        model, optimizer = amp.prepare(model, optimizer)
    except ua.PrepareError as error:
        amp, refusal = run.amp, str(error)
    assert refusal is None or re.search(r"another session.*close\(\)", refusal)
    assert refusal or not feature  # a part of the weights or moments is in the first session's hands
    x = amp.to_native(np.float32([1.0]))
    for _ in range(2):
        amp.backward(lambda: model(x), optimizer)
        assert amp.step(optimizer).applied
    (weight,) = (amp.master_weights(model) if feature else harness.parameters(model)).values()
    assert weight.tolist() == [1.0 - LR * (1.0 + 1.5 + 1.75)]
