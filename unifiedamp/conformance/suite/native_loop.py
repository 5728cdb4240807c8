"""A loop with the framework's own ``backward`` and ``step`` beside the session's, in the wrong places.

The probe's gradients are its input, so with SGD a step changes the weights by exactly what it was fed.
"""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session

LR, SCALE, FEED = 0.5, 1024.0, (1.0, 2.0)
START = (10.0, 10.0)
STEPPED = [9.5, 9.0]


class Loop:
    """A session over a probe whose step is written with the framework's own calls in the wrong places."""

    def __init__(self, harness, form="eager", **options):
        self.harness, self.form = harness, form
        self.amp = session(harness, form, **{"loss_scale": SCALE, **options})
        with self.amp.scope():
            model = harness.probe(START)
            optimizer = harness.sgd([model], LR)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)

    def run(self, step, feed=FEED):
        """Run ``step(loss)`` on the loss of ``feed``, in the loop's form."""

        def whole(x):
            with self.amp.autocast():
                loss = self.model(x)
            step(loss)
            return loss

        return compiled(self.amp, self.form, whole)(self.amp.to_native(np.array(feed, np.float32)))

    def native_backward(self, loss):
        if not self.harness.native_backward(loss):
            pytest.skip("the framework has no call that adds this loss's gradients to the parameters")

    def native_step(self):
        if not self.harness.native_step(self.optimizer):
            pytest.skip("the framework has no call that applies gradients beside the session")

    def right(self, loss):
        with self.amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        return self.amp.step(self.optimizer)

    def weights(self):
        return [float(value[0]) for value in self.harness.parameters(self.model).values()]

    def refused(self, step, *names):
        """``step`` is refused by a message with these names, and the next whole step is right."""
        with pytest.raises(ua.StepOrderError) as caught:
            self.run(step)
        for name in names:
            assert name in str(caught.value)
        assert self.weights() == list(START)
        self.amp.discard_step(self.optimizer)
        self.run(self.right)
        assert self.weights() == STEPPED


def inside(loop, loss):
    with loop.amp.scale_loss(loss, loop.optimizer):
        loop.native_backward(loss)
    loop.amp.step(loop.optimizer)


def inside_and_through(loop, loss):
    with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
        loop.native_backward(loss)
        scaled_loss.backward()
    loop.amp.step(loop.optimizer)


def instead(loop, loss):
    with loop.amp.scale_loss(loss, loop.optimizer):
        pass
    loop.native_backward(loss)
    loop.amp.step(loop.optimizer)


def afterwards(loop, loss):
    with loop.amp.scale_loss(loss, loop.optimizer) as scaled_loss:
        scaled_loss.backward()
    loop.native_backward(loss)
    loop.amp.step(loop.optimizer)
