"""Layers that draw at random: the backward pass has the draw of the forward pass, and inference draws nothing."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

SIZE, ROWS, RATE = 16, 32, 0.5


class Dropping:
    """A dense layer and a dropout, trained to answer 0 by SGD of learning rate 1."""

    def __init__(self, harness, form="eager", **options):
        self.harness, self.amp = harness, session(harness, form, **options)
        with self.amp.scope():
            model = harness.dropout(SIZE, RATE)
            optimizer = harness.sgd([model], 1.0)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self.step = compiled(self.amp, form, self._train)
        self.x, self.y = np.random.default_rng(0).normal(size=(ROWS, SIZE)), np.zeros((ROWS, SIZE))

    def _train(self, x, y):
        answers = []

        def loss():
            answers[:] = [self.model(x)]
            return self.harness.mean_square(answers[0], y)

        self.amp.backward(loss, self.optimizer)
        self.amp.step(self.optimizer)
        return answers[0]

    def bias(self):
        (bias,) = [value for value in self.harness.parameters(self.model).values() if value.ndim == 1]
        return np.array(bias, np.float64)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_gradients_are_of_what_was_drawn(harness, form, policy, recomputed):
    """What was dropped has no gradient, and what was kept has it times what it was multiplied by."""
    support = harness.capabilities().tunes("checkpoint_layers")
    if recomputed and not support:
        pytest.skip(f"declared: {support.reason}")
    try:
        run = Dropping(harness, form, policy=policy, tuning={"checkpoint_layers": ["drop"]} if recomputed else None)
    except ua.UnsupportedError as refusal:
        pytest.skip(f"refused: {refusal}")
    drawn = []
    for _ in range(3):
        before = run.bias()
        answer = np.float64(run.amp.to_numpy(run.step(run.amp.to_native(run.x), run.amp.to_native(run.y))))
        expected = (2.0 / answer.size * answer / (1.0 - RATE)).sum(0)
        tolerance = 1e-5 if policy == "float32" else 2e-2
        np.testing.assert_allclose(before - run.bias(), expected, rtol=tolerance, atol=tolerance)
        drawn.append(answer != 0.0)
        assert 0.3 < drawn[-1].mean() < 0.7
    assert (drawn[0] != drawn[1]).any()
    assert (drawn[1] != drawn[2]).any()


def test_nothing_is_drawn_in_inference(harness, form):
    run = Dropping(harness, form)
    call = compiled(run.amp, form, lambda x: run.model(x))
    run.step(run.amp.to_native(run.x), run.amp.to_native(run.y))
    with run.amp.inference(run.model):
        first, second = (np.array(run.amp.to_numpy(call(run.amp.to_native(run.x)))) for _ in range(2))
    assert (first != 0.0).all()
    np.testing.assert_array_equal(first, second)
