"""The reference transition against an oracle written independently, in numpy float32 arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unifiedamp import ConfigError, DynamicLossScale, NoLossScale, StaticLossScale
from unifiedamp.loss_scale import ScaleState, parse_loss_scale


def oracle(setting: DynamicLossScale, overflows: list[bool]) -> list[tuple[float, int]]:
    """Replay the rules of the documentation over whole runs: count back through the history each time."""
    scale = np.float32(setting.initial_scale)
    history: list[tuple[float, int]] = []
    good, grown_at = 0, -1
    for index, overflow in enumerate(overflows):
        if overflow:
            good = 0
            run = 0
            while run <= index and overflows[index - run]:
                run += 1
            if setting.hysteresis_reset == "growth":
                run = sum(overflows[grown_at + 1 : index + 1])
            if run >= setting.hysteresis:
                shrunk = np.float32(np.float64(scale) * setting.backoff_factor)
                scale = max(shrunk, np.float32(setting.min_scale))
        else:
            good += 1
            if good == setting.growth_interval:
                good, grown_at = 0, index
                with np.errstate(over="ignore"):
                    grown = np.float32(np.float64(scale) * setting.growth_factor)
                scale = min(grown, np.float32(setting.max_scale))
        history.append((float(scale), good))
    return history


scales = st.floats(2.0**-14, 2.0**24, width=32)


@st.composite
def dynamic_settings(draw):
    low, start, high = sorted(draw(st.lists(scales, min_size=3, max_size=3)))
    return DynamicLossScale(
        initial_scale=start,
        growth_factor=draw(st.floats(1.01, 16.0)),
        backoff_factor=draw(st.floats(0.01, 0.99)),
        growth_interval=draw(st.integers(1, 7)),
        min_scale=low,
        max_scale=high,
        hysteresis=draw(st.integers(1, 4)),
        hysteresis_reset=draw(st.sampled_from(["good_step", "growth"])),
    )


@settings(max_examples=300, deadline=None)
@given(dynamic_settings(), st.lists(st.booleans(), max_size=60))
def test_transition_follows_the_oracle(setting, overflows):
    state = setting.initial_state()
    seen = []
    for overflow in overflows:
        state = setting.next_state(state, overflow)
        seen.append((state.scale, state.good_steps))
    assert seen == oracle(setting, overflows)


@settings(max_examples=100, deadline=None)
@given(dynamic_settings())
def test_text_and_mapping_read_back(setting):
    assert parse_loss_scale(str(setting)) == setting
    assert parse_loss_scale(setting.to_dict()) == setting


def test_scale_never_reaches_zero_or_inf():
    setting = DynamicLossScale(growth_interval=1, max_scale=3e38, min_scale=1e-37)
    state = setting.initial_state()
    for _ in range(300):
        state = setting.next_state(state, True)
    assert state.scale == pytest.approx(1e-37, rel=1e-6)
    for _ in range(600):
        state = setting.next_state(state, False)
    assert state.scale == pytest.approx(3e38, rel=1e-6)
    assert math.isfinite(state.scale)


def test_hysteresis_counts_overflows_in_a_row():
    setting = DynamicLossScale(initial_scale=64.0, hysteresis=2)
    state = setting.initial_state()
    scales_seen = []
    for overflow in (True, False, True, True, True, False, True):
        state = setting.next_state(state, overflow)
        scales_seen.append(state.scale)
    assert scales_seen == [64.0, 64.0, 64.0, 32.0, 16.0, 16.0, 16.0]


def test_hysteresis_until_the_scale_grows():
    setting = DynamicLossScale(initial_scale=64.0, hysteresis=2, hysteresis_reset="growth", growth_interval=2)
    state, seen = setting.initial_state(), []
    for overflow in (True, False, True, False, True, False, False, True, True):
        state = setting.next_state(state, overflow)
        seen.append((state.scale, state.hysteresis_steps))
    scales_seen, counts = zip(*seen, strict=True)
    assert scales_seen == (64.0, 64.0, 32.0, 32.0, 16.0, 16.0, 32.0, 32.0, 16.0)
    assert counts == (1, 1, 2, 2, 2, 2, 0, 1, 2)


def test_another_hysteresis_reset_is_refused():
    with pytest.raises(ConfigError, match="hysteresis_reset must be 'good_step' or 'growth', got 'never'"):
        DynamicLossScale(hysteresis_reset="never")
    with pytest.raises(ConfigError, match="hysteresis_reset must be"):
        parse_loss_scale("dynamic(hysteresis_reset=2)")


def test_static_and_none_never_move():
    assert StaticLossScale(128.0).next_state(ScaleState(128.0), True).scale == 128.0
    assert NoLossScale().next_state(ScaleState(1.0, 3), True) == ScaleState(1.0, 3)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (128, StaticLossScale(128.0)),
        ("128", StaticLossScale(128.0)),
        ("dynamic", DynamicLossScale()),
        ("none", NoLossScale()),
        ({"initial_scale": 8.0}, DynamicLossScale(initial_scale=8.0)),
        ({"kind": "static", "scale": 2.0}, StaticLossScale(2.0)),
        ("dynamic( initial_scale=8.0, growth_interval=3 )", DynamicLossScale(initial_scale=8.0, growth_interval=3)),
    ],
)
def test_spellings(written, meant):
    assert parse_loss_scale(written) == meant


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (0, "scale must be a positive number"),
        (-1.0, "scale must be a positive number"),
        (math.inf, "scale must be a positive number"),
        (1e-60, "that float32 can hold"),
        (True, "loss_scale must be"),
        ("dynamc", "did you mean 'dynamic'"),
        ({"initial_scal": 1.0}, "did you mean 'initial_scale'"),
        ({"growth_factor": 1.0}, "growth_factor must be above 1"),
        ({"backoff_factor": 1.0}, "backoff_factor must be below 1"),
        ({"growth_interval": 0}, "growth_interval must be a whole number"),
        ({"growth_interval": 2.5}, "growth_interval must be a whole number"),
        ({"initial_scale": 2.0**30}, "lies outside"),
        ("dynamic(initial_scale=eight)", "'eight' is not a number"),
        ("dynamic(initial_scale=8", "closing bracket"),
        (object(), "loss_scale must be"),
    ],
)
def test_bad_settings_are_named(written, message):
    with pytest.raises(ConfigError, match=message):
        parse_loss_scale(written)


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        DynamicLossScale().initial_scale = 1.0
