"""One process uses every installed backend at once."""

import numpy as np
import pytest

from unifiedamp.conformance.driver import session
from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.plugin import peers

MIXED = "mixed_bfloat16"


def test_every_backend_in_one_process():
    """A step on each in turn, twice, and none disturbs another."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(4, 4)).astype(np.float32), np.zeros(4, np.float32)) for _ in range(2)]
    x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
    harnesses = [load_harness(name) for name in peers()]
    runs = []
    for harness in harnesses:
        amp = session(harness, policy=MIXED)
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], 0.05)
        runs.append((harness, amp, *amp.prepare(model, optimizer)))
    losses = {harness.backend: [] for harness in harnesses}
    for _ in range(4):
        for harness, amp, model, optimizer in runs:
            loss = amp.backward(
                lambda h=harness, a=amp, m=model: h.mean_square(m(a.to_native(x)), a.to_native(y)), optimizer
            )
            amp.step(optimizer)
            losses[harness.backend].append(float(np.ravel(amp.to_numpy(loss))[0]))
    for curve in losses.values():
        assert curve == sorted(curve, reverse=True)
        assert curve == pytest.approx(next(iter(losses.values())), rel=0.02)
