"""The scale that is told is the one in use: losses are multiplied by it, gradients divided by it, overflows follow."""

import sys

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run, session

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=1)


def number_of(amp, value):
    return float(np.ravel(amp.to_numpy(value))[0])


def loaded(run, scale):
    state = run.amp.state_dict()
    run.amp.load_state_dict({**state, "state": {**state["state"], "scale": scale}})


def test_overflows_follow_the_scale_told(harness, form):
    """The gradient 2**127 / scale is the largest power of two that fits; twice as much is an overflow."""
    run = probe_run(harness, form, values=(0.0,), lr=2.0**-126, loss_scale=SCALE)
    expected = [0, 0]
    for fits in ("fits", "fits", "over", "fits", "load", "over", "fits", "over", "load", "fits", "over"):
        if fits == "load":
            loaded(run, run.amp.loss_scale * 16.0)
        else:
            run.feed(2.0 ** (127 + (fits == "over")) / run.amp.loss_scale)
            expected[fits == "over"] += 1
        assert [run.amp.applied_steps, run.amp.skipped_steps] == expected


def test_scaled_gradients_are_multiples_of_the_scale_told(harness):
    """At every step: after growth, after a skip, after a loaded state, and in windows that were discarded."""
    run = probe_run(harness, loss_scale=SCALE)
    amp, optimizer = run.amp, run.optimizer

    def check():
        x = amp.to_native(np.float32([3.0]))
        amp.backward(lambda: run.model(x), optimizer)
        (value,) = amp.gradients(optimizer).values()
        assert number_of(amp, value) == 3.0 * amp.loss_scale

    for gradient in (1.0, 1.0, np.inf, np.inf, 1.0):
        check()
        amp.discard_step(optimizer)
        run.feed(gradient)
    loaded(run, 64.0)
    check()
    amp.unscale(optimizer)
    (value,) = amp.gradients(optimizer).values()
    assert number_of(amp, value) == 3.0


class Interrupted(Exception):
    """Raised by the test."""


class Lines:
    """Follows the lines of the backend's own code: raises before the one with this number.

    Without a number it finds ``changed``, that of the first line before which the session's scale is another one.
    """

    def __init__(self, amp, number=None):
        self.training, self.number, self.count, self.changed = amp.backend.training, number, 0, None
        self.package, self.scale = type(amp.backend).__module__.partition(".")[0], amp.loss_scale

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.called)

    def __exit__(self, *error):
        sys.settrace(self.before)

    def called(self, frame, *_):
        own = frame.f_globals.get("__name__", "").partition(".")[0] == self.package
        return self.line if own and frame.f_code.co_name != "__exit__" else None

    def line(self, _, event, __):
        if event == "line":
            self.count += 1
            if self.count == self.number:
                raise Interrupted
            if self.number is None and self.changed is None and self.training.read_state().scale != self.scale:
                self.changed = self.count
        return self.line


def test_an_interrupted_update_of_the_scale_leaves_one_scale(harness):
    """Around the line at which a step grows or shrinks it."""
    run = probe_run(harness, loss_scale=SCALE)
    amp, optimizer = run.amp, run.optimizer
    x = amp.to_native(np.float32([3.0]))
    for gradient in (1.0, np.inf):
        run.feed(gradient)
        lines = Lines(amp)
        with lines:
            run.feed(gradient)
        for number in range(-1, 3):
            try:
                with Lines(amp, (lines.changed or lines.count) + number):
                    run.feed(gradient)
            except Interrupted:
                amp.discard_step(optimizer)
            amp.backward(lambda: run.model(x), optimizer)
            (value,) = amp.gradients(optimizer).values()
            assert number_of(amp, value) == 3.0 * amp.loss_scale
            amp.discard_step(optimizer)


@pytest.mark.needs("context_form")
@pytest.mark.parametrize("scale", [3.3, 2.0**15, "none"])
def test_a_loss_of_16_bits_is_scaled_in_float32(harness, scale):
    """Where float16 would overflow, or bfloat16 round; its gradients are those of the loss."""
    for dtype in ("bfloat16", "float16"):
        amp = session(harness, loss_scale=scale)
        model = harness.probe([1.0])
        model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
        x = amp.to_native(np.float32([5.0]))
        with amp.autocast():
            loss = harness.cast(model(x), dtype)
        with amp.scale_loss(loss, optimizer) as scaled:
            assert harness.dtype_of(scaled.value) == "float32"
            assert number_of(amp, scaled.value) == float(
                np.float32(5.0) * np.float32(1.0 if scale == "none" else scale)
            )
            scaled.backward()
        assert amp.step(optimizer).applied
        assert harness.parameters(model).popitem()[1] == pytest.approx([0.5], rel=2.0**-7)
