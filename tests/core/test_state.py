"""The state schema and the readers of native layouts, against a session that needs no framework."""

import contextlib
import json
import math
import warnings

import pytest
from effort import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st

import unifiedamp as ua
from unifiedamp.backend import SessionSpec
from unifiedamp.checkpoint import dump_session, load_session, read_saved
from unifiedamp.loss_scale import ScaleState, parse_loss_scale


class StandInBackend:
    """Holds a state, as a backend does."""

    name = "stand-in"

    def __init__(self, spec):
        self.spec, self.state = spec, spec.loss_scale.initial_state()

    def read_state(self):
        return self.state

    def write_state(self, state):
        self.state = state


class StandInSession:
    def __init__(self, policy="mixed_float16", loss_scale="dynamic", strict=False):
        self.policy = ua.Policy.parse(policy)
        self.loss_scale_settings = parse_loss_scale(loss_scale)
        self.backend = StandInBackend(SessionSpec(self.policy, self.loss_scale_settings, strict=strict))


def saved(**changes):
    session = StandInSession()
    session.backend.state = ScaleState(1024.0, 7, 0, 20, 3)
    return {**dump_session(session), **changes}


def load(raw, restart=False, **session):
    target = StandInSession(**session)
    load_session(target, raw, restart)
    return target.backend.state


def test_state_is_plain_json_and_reads_back():
    raw = json.loads(json.dumps(saved()))
    assert load(raw) == ScaleState(1024.0, 7, 0, 20, 3)


NATIVE = {
    "torch": {
        "scale": 512.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 5,
    },
    "apex": {"loss_scaler0": {"loss_scale": 512.0, "unskipped": 5}},
    "keras3": {"dynamic_scale": 512.0, "step_counter": 5},
    "keras2": {"current_loss_scale": 512.0, "good_steps": 5},
    "mxnet": {
        "_loss_scale": 1024.0,
        "_next_loss_scale": 512.0,
        "_max_loss_scale": 2.0**24,
        "_scale_seq_len": 2000,
        "_unskipped": 5,
    },
}


@pytest.mark.parametrize("layout", list(NATIVE))
def test_native_layouts(layout):
    assert load(NATIVE[layout]) == ScaleState(512.0, 5)


def test_torch_settings_that_differ_are_told():
    with pytest.warns(ua.StateWarning, match="growth_interval was 100 when saved; this session's 2000 is used"):
        load({**NATIVE["torch"], "growth_interval": 100})


@pytest.mark.parametrize("raw", [{}, "saved disabled"])
def test_saved_with_scaling_off_is_refused_unless_asked_for(raw):
    if raw:
        raw = dump_session(StandInSession("mixed_bfloat16", "none"))
    target = StandInSession()
    before = target.backend.state
    with pytest.raises(ua.CheckpointError, match="saved with loss scaling off.*restart_scale=True"):
        load_session(target, raw, False)
    assert target.backend.state is before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.StateWarning)
        load_session(target, raw, True)
    assert target.backend.state.scale == 2.0**16


def test_saved_scaled_and_loaded_unscaled_keeps_the_counts():
    with pytest.warns(ua.StateWarning, match="saved under policy 'mixed_float16'"):
        state = load(saved(), policy="mixed_bfloat16", loss_scale="none")
    assert state == ScaleState(1.0, 0, 0, 20, 3)


def test_a_scale_out_of_bounds_is_clamped_and_told():
    raw = saved(state={"scale": 2.0**30, "good_steps": 0, "bad_steps": 0, "applied_steps": 0, "skipped_steps": 0})
    with pytest.warns(ua.StateWarning, match="lies outside"):
        assert load(raw).scale == 2.0**24


def test_strict_turns_a_mismatch_into_an_error():
    with pytest.raises(ua.CheckpointError, match="saved under policy"):
        load(saved(), policy="mixed_bfloat16", strict=True)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (saved(version=99), "version 99.*update it"),
        (saved(version=None), "no usable version"),
        (saved(schema="other"), "schema 'other'"),
        ({"schema": "unifiedamp", "version": 1}, "truncated: policy, loss_scale, state missing"),
        (saved(state={"scale": 1.0}), "truncated: state.good_steps missing"),
        (saved(state=3), "'state' must be a mapping"),
        (saved(state={**saved()["state"], "scale": 0.0}), "state.scale must be a positive number"),
        (saved(state={**saved()["state"], "scale": math.nan}), "state.scale must be a finite number"),
        (saved(state={**saved()["state"], "good_steps": -1}), "state.good_steps must be a whole number"),
        (saved(loss_scale={"kind": "dynamc"}), "loss_scale cannot be read"),
        (saved(policy=4), "policy must be text"),
        ({"weights": 1}, "this is no state of unifiedamp"),
        ({"loss_scaler0": {}}, "Apex state"),
        ([1], "must be a mapping"),
    ],
)
def test_unusable_states_are_refused_and_nothing_changes(raw, message):
    target = StandInSession()
    before = target.backend.state
    with pytest.raises(ua.CheckpointError, match=message):
        load_session(target, raw, False)
    assert target.backend.state is before


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=FUZZ, deadline=None)
@given(st.sampled_from([saved(), *NATIVE.values()]), st.data())
def test_only_our_errors_come_out_of_a_mutated_state(raw, data):
    raw = dict(raw)
    for key in data.draw(st.lists(st.sampled_from(sorted(raw)), min_size=1, max_size=3)):
        raw[key] = data.draw(json_values)
    with contextlib.suppress(ua.AmpError):
        read_saved(raw)
