"""Scaler states of DeepSpeed and Megatron-LM: a session goes on from them as they would have.

``DeepSpeed`` and ``Megatron`` write out the rules of both systems; a session that loads their state must have their
scale after every further iteration.
"""

import random
import warnings

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import SessionSpec
from unifiedamp.checkpoint.session_state import dump_session, read_session, to_grad_scaler_state
from unifiedamp.loss_scale import ScaleState, parse_loss_scale
from unifiedamp.training.ema import Averages

HIGH = 2.0**126


class DeepSpeed:
    """The rules of DeepSpeed's ``DynamicLossScaler``; its attributes are what a checkpoint holds."""

    def __init__(self, scale, window, hysteresis, consecutive):
        self.cur_scale, self.dynamic = scale, True
        self.cur_iter, self.last_overflow_iter = 0, -1
        self.scale_factor, self.scale_window, self.min_scale = 2.0, window, 1
        self.delayed_shift = self.cur_hysteresis = hysteresis
        self.consecutive_hysteresis, self.raise_error_at_min_scale = consecutive, False
        self.dtype = "torch.float16"

    def update(self, overflow):
        if overflow:
            if self.delayed_shift == 1 or self.cur_hysteresis == 1:
                self.cur_scale = max(self.cur_scale / self.scale_factor, self.min_scale)
            else:
                self.cur_hysteresis -= 1
            self.last_overflow_iter = self.cur_iter
        else:
            if self.consecutive_hysteresis:
                self.cur_hysteresis = self.delayed_shift
            if (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
                if not self.consecutive_hysteresis:
                    self.cur_hysteresis = self.delayed_shift
                self.cur_scale *= self.scale_factor
        self.cur_iter += 1

    scale = property(lambda self: self.cur_scale)
    state = property(lambda self: dict(vars(self)))


class Megatron:
    """The rules of Megatron-LM's ``DynamicGradScaler``."""

    def __init__(self, scale, window, hysteresis, _):
        self.scale, self.window, self.hysteresis = scale, window, hysteresis
        self.growth_tracker, self.hysteresis_tracker = 0, hysteresis

    def update(self, overflow):
        if overflow:
            self.growth_tracker = 0
            self.hysteresis_tracker -= 1
            if self.hysteresis_tracker <= 0:
                self.scale = max(self.scale * 0.5, 1.0)
            return
        self.growth_tracker += 1
        if self.growth_tracker == self.window:
            self.growth_tracker, self.hysteresis_tracker = 0, self.hysteresis
            self.scale *= 2.0

    @property
    def state(self):
        scale = np.array([self.scale], np.float32)
        return {"scale": scale, "growth_tracker": self.growth_tracker, "hysteresis_tracker": self.hysteresis_tracker}


class StandIn:
    """What a session's state is made of and read into; it warns by raising."""

    def __init__(self, loss_scale, strict=True):
        self.policy, self.loss_scale_settings = ua.Policy.parse("mixed_float16"), parse_loss_scale(loss_scale)
        spec = SessionSpec(self.policy, self.loss_scale_settings, strict=strict)
        self.name, self.spec, self.backend, self.training = "stand-in", spec, self, self
        self.averages, self.state = Averages(self, None), self.loss_scale_settings.initial_state()

    def read_state(self):
        return self.state

    def load(self, raw):
        self.state = read_session(self, raw, False)
        return self

    def update(self, overflow):
        self.state = self.loss_scale_settings.next_state(self.state, overflow)


def settings_like(window, hysteresis, reset):
    return ua.DynamicLossScale(
        initial_scale=2.0**16, growth_interval=window, min_scale=1.0, max_scale=HIGH, hysteresis=hysteresis,
        hysteresis_reset=reset,
    )  # fmt: skip


SYSTEMS = {
    "DeepSpeed": (DeepSpeed, False, "growth"),
    "DeepSpeed, consecutive_hysteresis": (DeepSpeed, True, "good_step"),
    "Megatron": (Megatron, False, "growth"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_goes_on_as_it_would_have(name):
    """1,500 random runs, each left at a random iteration for a session, which saves and loads once itself."""
    system, consecutive, reset = SYSTEMS[name]
    rng = random.Random(name)
    for _ in range(1500):
        window, hysteresis = rng.randint(1, 6), rng.randint(1, 4)
        rate = rng.choice([0.1, 0.3, 0.6])
        theirs = system(2.0**16, window, hysteresis, consecutive)
        for _ in range(rng.randint(0, 30)):
            theirs.update(rng.random() < rate)
        ours = StandIn(settings_like(window, hysteresis, reset)).load(theirs.state)
        assert ours.state.scale == theirs.scale
        for step in range(40):
            if step == 20:
                ours = StandIn(ours.loss_scale_settings).load(dump_session(ours))
            overflow = rng.random() < rate
            theirs.update(overflow)
            ours.update(overflow)
            assert ours.state.scale == theirs.scale


def deepspeed(**changes):
    state = DeepSpeed(512.0, 1000, 2, False).state
    return {**state, "cur_iter": 8, "last_overflow_iter": 2, "cur_hysteresis": 1, **changes}


def fp16_optimizer(**changes):
    return {
        "dynamic_loss_scale": True, "cur_scale": 512.0, "cur_iter": 9, "last_overflow_iter": 2, "scale_factor": 2.0,
        "scale_window": 1000, "optimizer_state_dict": {}, "clip_grad": 0.0, **changes,
    }  # fmt: skip


def megatron(**changes):
    return {"scale": 512.0, "growth_tracker": 5, "hysteresis_tracker": 1, **changes}


class Scaler:
    """An object with DeepSpeed's attributes, as a checkpoint of ZeRO holds one."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.mark.parametrize(
    "raw",
    [
        {"loss_scaler": Scaler(**deepspeed()), "dynamic_loss_scale": True, "overflow": False},
        {"loss_scaler": deepspeed()},
        {"grad_scaler": megatron(), "optimizer": {}},
        megatron(scale=np.array([512.0], np.float32)),
        fp16_optimizer(cur_hysteresis=1),
    ],
    ids=["ZeRO", "ZeRO, a mapping", "Megatron's optimizer", "with an axis", "FP16_Optimizer"],
)
def test_checkpoints_hold_it_in_several_shapes(raw):
    session = StandIn(settings_like(1000, 2, "growth")).load(raw)
    assert session.state == ScaleState(512.0, 5, 0, 0, 0, 1)


def test_an_optimizer_without_hysteresis_is_read_too():
    assert StandIn(settings_like(1000, 1, "good_step")).load(fp16_optimizer()).state == ScaleState(512.0, 5)


@pytest.mark.parametrize("raw", [{"cur_scale": 128, "dynamic": False}, fp16_optimizer(dynamic_loss_scale=False)])
def test_a_static_scale_is_read(raw):
    with pytest.warns(ua.StateWarning, match="saved with loss scale static"):
        state = StandIn("dynamic", strict=False).load(raw).state
    assert state == ScaleState(float(raw["cur_scale"]))


def test_settings_that_differ_are_told():
    with pytest.warns(ua.StateWarning) as told:
        StandIn(ua.DynamicLossScale(hysteresis=3), strict=False).load(deepspeed())
    assert [str(each.message).partition(";")[0] for each in told] == [
        "loss scale growth_interval was 1000 when saved",
        "loss scale min_scale was 1.0 when saved",
        "loss scale hysteresis was 2 when saved",
        "loss scale hysteresis_reset was 'growth' when saved",
    ]


@pytest.mark.parametrize("raw", [deepspeed(min_scale=0), {k: v for k, v in deepspeed().items() if k != "min_scale"}])
def test_a_run_without_a_smallest_scale(raw):
    session = StandIn(ua.DynamicLossScale(growth_interval=1000, hysteresis=2, hysteresis_reset="growth"))
    assert session.load(raw).state == ScaleState(512.0, 5, 0, 0, 0, 1)


def test_a_session_that_waits_less_than_megatron_says_so():
    with pytest.warns(ua.StateWarning, match="had 4 overflows left .* backs off after 2: give DynamicLossScale"):
        StandIn(settings_like(9, 2, "growth"), strict=False).load(megatron(hysteresis_tracker=4))


def test_without_hysteresis_its_reset_is_no_difference():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        StandIn(settings_like(1000, 1, "good_step")).load(deepspeed(delayed_shift=1))


def test_a_state_saved_in_the_other_mode_keeps_what_counts():
    before = StandIn(settings_like(9, 4, "good_step"))
    before.state = ScaleState(8.0, 0, 2, 5, 2)
    with pytest.warns(ua.StateWarning, match="hysteresis_reset was 'good_step'"):
        after = StandIn(settings_like(9, 4, "growth"), strict=False).load(dump_session(before))
    assert after.state == ScaleState(8.0, 0, 2, 5, 2, 2)
    with pytest.warns(ua.StateWarning, match="hysteresis_reset was 'growth'"):
        back = StandIn(settings_like(9, 4, "good_step"), strict=False).load(dump_session(after))
    assert back.state == before.state


def test_it_becomes_a_state_of_torchs_scaler():
    assert to_grad_scaler_state(deepspeed()) == {
        "scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000, "_growth_tracker": 5
    }  # fmt: skip


class Unreadable:
    """An array on a device that is gone."""

    shape = (1,)

    def item(self):
        raise RuntimeError("no such device")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"cur_scale": 8.0}, "DeepSpeed state: cur_iter, last_overflow_iter, scale_factor, scale_window missing"),
        ({k: v for k, v in deepspeed().items() if k != "cur_hysteresis"}, "DeepSpeed state: cur_hysteresis missing"),
        (deepspeed(cur_scale=0), "cur_scale must be a positive number"),
        (deepspeed(cur_iter=-1), "cur_iter must be a whole number"),
        (deepspeed(last_overflow_iter=8), r"last_overflow_iter must be below cur_iter \(8\), got 8"),
        (deepspeed(scale_window=0), "scale_window must be a whole number from 1"),
        (deepspeed(scale_window=2**40), "growth_interval must be a whole number"),
        (deepspeed(scale_factor=1), "scale_factor must be above 1, got 1"),
        (deepspeed(cur_hysteresis=3), r"cur_hysteresis must be at most delayed_shift \(2\), got 3"),
        (deepspeed(cur_hysteresis=0), "cur_hysteresis must be a whole number from 1"),
        (deepspeed(consecutive_hysteresis="no"), "consecutive_hysteresis must be true or false"),
        (deepspeed(dynamic=np.array([1, 2])), "dynamic must be true or false"),
        (deepspeed(min_scale=-1), "min_scale must be a positive number"),
        ({"loss_scaler": 3}, "DeepSpeed state: loss_scaler must hold cur_scale, got 3"),
        ({"grad_scaler": {}}, "Megatron-LM DynamicGradScaler state: grad_scaler must hold scale"),
        ({"scale": 2.0, "growth_tracker": 1}, "Megatron-LM DynamicGradScaler state: hysteresis_tracker missing"),
        (megatron(scale=np.array([1.0, 2.0])), "scale must be a finite number"),
        (megatron(scale=Unreadable()), "scale cannot be read: no such device"),
        (megatron(growth_tracker=-1), "growth_tracker must be a whole number"),
        (megatron(hysteresis_tracker=0.5), "hysteresis_tracker must be a whole number"),
    ],
)
def test_a_malformed_state_is_refused_by_its_key(raw, said):
    with pytest.raises(ua.CheckpointError, match=said):
        StandIn(settings_like(1000, 2, "growth")).load(raw)
