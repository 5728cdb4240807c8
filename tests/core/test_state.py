"""The state schema and the readers of native layouts, against a session that needs no framework."""

import json
import math
import warnings
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from effort import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import ODD, mutated

import unifiedamp as ua
from unifiedamp.backend import SessionSpec
from unifiedamp.checkpoint.session_state import dump_session, read_session
from unifiedamp.loss_scale import ScaleState, parse_loss_scale
from unifiedamp.training.ema import Averages


class StandInBackend:
    """Holds a state, as a backend does."""

    name = "stand-in"

    def __init__(self, spec):
        self.spec, self.state = spec, spec.loss_scale.initial_state()
        self.training = self

    def read_state(self):
        return self.state

    def write_state(self, state):
        self.state = state


class StandInSession:
    def __init__(self, policy="mixed_float16", loss_scale="dynamic", strict=False):
        self.policy = ua.Policy.parse(policy)
        self.loss_scale_settings = parse_loss_scale(loss_scale)
        self.backend = StandInBackend(SessionSpec(self.policy, self.loss_scale_settings, strict=strict))
        self.averages = Averages(self.backend, None)


def saved(**changes):
    session = StandInSession()
    session.backend.state = ScaleState(1024.0, 7, 0, 20, 3)
    return {**dump_session(session), **changes}


def load_session(target, raw, restart=False):
    target.backend.write_state(read_session(target, raw, restart))


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
    "deepspeed": {
        "cur_scale": 512.0,
        "dynamic": True,
        "cur_iter": 9,
        "last_overflow_iter": 3,
        "scale_factor": 2.0,
        "scale_window": 2000,
        "min_scale": 2.0**-14,
        "delayed_shift": 1,
        "cur_hysteresis": 1,
        "consecutive_hysteresis": False,
    },
    "deepspeed fp16": {
        "dynamic_loss_scale": True,
        "cur_scale": 512.0,
        "cur_iter": 9,
        "last_overflow_iter": 2,
        "scale_factor": 2.0,
        "scale_window": 2000,
        "cur_hysteresis": 1,
    },
    "megatron": {"scale": 512.0, "growth_tracker": 5, "hysteresis_tracker": 1},
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


@pytest.mark.parametrize(("scale", "expected"), [(2.0**30, 2.0**24), (2.0**-20, 2.0**-14)])
def test_a_torch_scale_out_of_bounds_is_clamped_and_told(scale, expected):
    with pytest.warns(ua.StateWarning, match="lies outside"):
        assert load({**NATIVE["torch"], "scale": scale}).scale == expected


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
        ({"model": {"weight": 1}, "amp": saved()}, "its keys are 'amp', 'model'; pass the part 'amp'"),
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


SEVERAL = {"loss_scaler0": {"loss_scale": 512.0, "unskipped": 5}, "loss_scaler1": {"loss_scale": 4.0, "unskipped": 1}}
HOSTILE = [
    *ODD, 10**5000, np.float32("nan"), np.float64(1e300), np.int64(3), np.array(2.0), np.array([2.0]), np.bool_(True),
    np.array("x"), np.complex64(1), np.datetime64(0, "s"), 1j, object(), b"1", {1: 2}, (1,), Fraction(1, 2), Decimal(2),
    2**52, 2**52 + 1, 2.0**24, 2.0**25, 1 + 1e-12, 1e-46, 1e-45, "mixed_float16", "dynamic", "static(scale=nan)",
]  # fmt: skip


@settings(max_examples=FUZZ, deadline=None)
@given(
    raw=st.sampled_from([saved(), dump_session(StandInSession("float32", 128)), SEVERAL, *NATIVE.values()]).flatmap(
        lambda raw: mutated(raw, HOSTILE)
    ),
    loss_scale=st.sampled_from(["none", 64, "dynamic", {"min_scale": 0.7, "initial_scale": 3, "growth_interval": 1}]),
    restart=st.booleans(),
)
def test_a_mutated_state_is_taken_over_within_bounds_or_refused(raw, loss_scale, restart):
    target = StandInSession(loss_scale=loss_scale)
    before, mine = target.backend.state, target.loss_scale_settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.StateWarning)
        try:
            load_session(target, raw, restart)
        except ua.CheckpointError:
            assert target.backend.state is before
            return
    state = target.backend.state
    assert type(state.scale) is float
    assert state.scale == np.float32(state.scale)
    low, high = mine.scale_bounds
    assert np.float32(low) <= state.scale <= np.float32(high)
    counts = [value for name, value in asdict(state).items() if name != "scale"]
    assert all(type(count) is int and 0 <= count <= 2**52 for count in counts)
    assert state.good_steps < mine.growth_interval
    assert not (state.good_steps and state.bad_steps)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"scale": True}, "state.scale must be a finite number, got True"),
        ({"scale": "8"}, "state.scale must be a finite number"),
        ({"scale": -8.0}, "state.scale must be a positive number"),
        ({"scale": 1e39}, "state.scale must be a positive number"),
        ({"scale": 10**400}, "state.scale must be a positive number"),
        ({"scale": 1e-46}, "state.scale must be a positive number"),
        ({"applied_steps": 2**63}, "state.applied_steps must be a whole number"),
        ({"applied_steps": 10**5000}, "state.applied_steps must be a whole number"),
        ({"skipped_steps": 0.5}, "state.skipped_steps must be a whole number"),
        ({"skipped_steps": [1]}, "state.skipped_steps must be a finite number"),
        ({"bad_steps": 2, "good_steps": 1}, "one of them must be 0"),
    ],
)
def test_a_number_out_of_range_is_named(state, said):
    with pytest.raises(ua.CheckpointError, match=said):
        load(saved(state={**saved()["state"], **state}))


@pytest.mark.parametrize("policy", ["no_such_policy", "float31", "\x00"])
def test_a_policy_that_is_none_is_refused(policy):
    with pytest.raises(ua.CheckpointError, match="policy cannot be read"):
        load(saved(policy=policy))


def test_a_scale_that_is_no_float32_is_rounded():
    assert load(saved(state={**saved()["state"], "scale": 0.1})).scale == float(np.float32(0.1))


def test_a_bound_that_is_no_float32_holds_its_own_rounding():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bounds = ua.DynamicLossScale(initial_scale=0.7, min_scale=0.7)
        before = dump_session(StandInSession(loss_scale=bounds))
        assert load(before, loss_scale=bounds).scale == float(np.float32(0.7))


def test_torchs_factors_are_compared_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load({**NATIVE["torch"], "growth_factor": 1.1}, loss_scale={"growth_factor": 1.1})


class Unreadable:
    def numpy(self):
        raise RuntimeError("a symbolic tensor has no values")


def test_a_tensor_that_cannot_be_read_is_refused():
    with pytest.raises(ua.CheckpointError, match="scale cannot be read: a symbolic tensor"):
        load({**NATIVE["torch"], "scale": Unreadable()})
