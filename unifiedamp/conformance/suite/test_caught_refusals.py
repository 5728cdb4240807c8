"""A loop that catches a refusal and goes on: native calls beside the session, whose error is suppressed."""

import contextlib

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.suite.native_loop import (
    START,
    STEPPED,
    Loop,
    afterwards,
    inside,
    inside_and_through,
    instead,
)  # fmt: skip


@pytest.mark.needs("context_form")
@pytest.mark.filterwarnings("ignore::unifiedamp.StepWarning")  # no gradients may be left
@pytest.mark.parametrize("place", [inside, inside_and_through, instead, afterwards])
def test_a_loop_that_catches_a_refusal_applies_no_wrong_gradients(harness, place):
    """The step after it is refused, too, or what it applies is right."""
    loop = Loop(harness)

    def step(loss):
        with contextlib.suppress(ua.StepOrderError):
            place(loop, loss)
        loop.amp.step(loop.optimizer)

    with contextlib.suppress(ua.StepOrderError):
        loop.run(step)
    assert loop.weights() in (list(START), STEPPED)
    loop.amp.discard_step(loop.optimizer)
    before = np.array(loop.weights())
    loop.run(loop.right)
    np.testing.assert_allclose(before - loop.weights(), [0.5, 1.0])
