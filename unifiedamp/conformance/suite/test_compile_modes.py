"""``amp.compile``: its two spellings, and the modes that a session and a call may name."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import session


def trained(harness, decorate, **options):
    """Return the probe's weight after two steps of a decorated step."""
    amp = session(harness, **options)
    with amp.scope():
        model = harness.probe((1.0,))
        optimizer = harness.sgd([model], 0.1)
    model, optimizer = amp.prepare(model, optimizer)

    @decorate(amp)
    def step(x):
        loss = amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)
        return loss

    for _ in range(2):
        step(amp.to_native(np.ones(1, np.float32)))
    (weight,) = harness.parameters(model).values()
    return float(weight[0])


@pytest.mark.needs("compile")
@pytest.mark.parametrize("mode", ["default", "max"])
def test_the_call_names_the_mode(harness, mode):
    assert trained(harness, lambda amp: amp.compile(mode=mode)) == pytest.approx(0.8, abs=1e-6)


def test_the_session_names_the_mode(harness):
    assert trained(harness, lambda amp: amp.compile, compile="off") == pytest.approx(0.8, abs=1e-6)


def test_off_is_the_function_itself(harness):
    def step():
        """A step."""

    assert session(harness).compile(step, mode="off") is step
    assert session(harness, compile="off").compile(step) is step


def test_a_step_is_compiled_or_refused_by_name(harness):
    if harness.capabilities().feature("compile"):
        assert callable(session(harness).compile(lambda: None))
        return
    with pytest.raises(ua.UnsupportedError, match=f"backend '{harness.backend}' cannot compile"):
        session(harness).compile(lambda: None)


@pytest.mark.parametrize("mode", ["maximum", "", True, 1])
def test_an_unknown_mode_is_refused(harness, mode):
    with pytest.raises(ua.ConfigError, match="off, default, max"):
        session(harness, compile=mode)
    with pytest.raises(ua.ConfigError, match=r"amp.compile: mode must be one of off, default, max"):
        session(harness).compile(lambda: None, mode=mode)


@pytest.mark.needs("compile")
@pytest.mark.parametrize("mode", ["default", "max"])
@pytest.mark.parametrize("trains", [False, True], ids=["evaluated", "trained"])
def test_a_model_itself_is_compiled(harness, mode, trains):
    """It answers as the model does, also after the weights have changed."""
    amp = session(harness)
    layers = [(np.eye(2, dtype=np.float32), np.float32([0.5, -0.5]))]
    with amp.scope():
        model = harness.mlp(layers)
        optimizer = harness.sgd([model], 0.25)
    model, optimizer = amp.prepare(model, optimizer)
    call = amp.compile(model, mode=mode)
    x, y = amp.to_native(np.float32([[1.0, 2.0]])), amp.to_native(np.zeros((1, 2), np.float32))
    expected = np.array([[1.5, 1.5]])
    for _ in range(3):
        with amp.inference(model):
            np.testing.assert_allclose(amp.to_numpy(call(x)), expected, rtol=1e-6)
        if trains:
            try:
                amp.backward(lambda: harness.mean_square(call(x), y), optimizer)
            except ua.UnsupportedError as refusal:
                pytest.skip(f"refused: {refusal}")
            assert amp.step(optimizer).applied
            # The gradient of the mean square of two numbers is the output, and reaches (1, 2) and the bias.
            expected = expected - 0.25 * expected * (1.0 + 4.0 + 1.0)


@pytest.mark.parametrize("wrong", [3, "step", object()], ids=["number", "text", "object"])
def test_what_cannot_be_called_is_not_compiled(harness, wrong):
    with pytest.raises(ua.WrongObjectError, match="amp.compile takes a function or a model, got"):
        session(harness).compile(wrong)
