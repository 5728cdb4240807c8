"""``PolicySchedule``: which policy is in force at which iteration, its text form, and what is refused."""

import math
import random

import pytest

import unifiedamp as ua
from unifiedamp.backend import SessionSpec
from unifiedamp.config.arguments import read_arguments
from unifiedamp.config.resolve import resolve
from unifiedamp.policy import PolicySchedule

LOW = ua.Policy.parse("mixed_bfloat16")


def test_policies_are_in_force_from_their_iteration_on():
    schedule = PolicySchedule.of({"90%": "mixed_bfloat16", 0: "mixed_float8", 20: LOW}, total_steps=1000)
    assert schedule.steps == (0, 20, 900)
    names = [schedule.at(step).name for step in (0, 19, 20, 899, 900, 10**6)]
    assert names == ["mixed_float8"] * 2 + ["mixed_bfloat16"] * 4
    assert [schedule.next_switch(step) for step in (0, 19, 20, 899, 900)] == [20, 20, 900, 900, None]


@pytest.mark.parametrize("total", [1, 3, 7, 1000, 2**31 - 1])
@pytest.mark.parametrize("percent", ["0%", "33.3%", "50 %", "99.9%"])
def test_percentages_are_rounded_up(total, percent):
    """The oracle counts in thousandths, in whole numbers."""
    thousandths = round(float(percent.rstrip(" %")) * 10)
    expected = -(-thousandths * total // 1000)
    if not thousandths:
        assert PolicySchedule.of({percent: LOW}, total).steps == (0,)
    elif expected >= total:
        with pytest.raises(ua.PolicyError, match="past the end"):
            PolicySchedule.of({0: "float32", percent: LOW}, total)
    else:
        assert PolicySchedule.of({0: "float32", percent: LOW}, total).steps == (0, expected)


def test_text_reads_back():
    rng = random.Random(0)
    texts = [
        "float32",
        "mixed_float8;recipe=delayed;wgrad=bfloat16",
        "mixed_float16;ops=exp:float32;layers=a.*:float32",
        "mixed_bfloat16;emulate=true",
    ]
    for _ in range(50):
        steps = sorted({0, *(rng.randrange(1, 10**6) for _ in range(rng.randrange(4)))})
        schedule = PolicySchedule.of([(step, rng.choice(texts)) for step in steps])
        assert PolicySchedule.of(str(schedule)) == schedule == eval(repr(schedule), {"PolicySchedule": PolicySchedule})
        assert hash(PolicySchedule.of(str(schedule))) == hash(schedule)
    assert str(PolicySchedule.of("0:fp16|50%: bf16", 10)) == "0: mixed_float16 | 5: mixed_bfloat16"


REFUSED = [
    ({}, None, "empty"),
    ({5: LOW}, None, "no policy for iteration 0"),
    ({0: LOW, "0%": LOW}, 10, "'0' and '0%' are the same iteration, 0 of 10"),
    ({0: LOW, 5: LOW, "50%": LOW}, 10, "same iteration, 5"),
    ([(0, LOW), (9, LOW), (5, LOW)], None, "runs backwards: '5'"),
    ("0: float32 | 7: fp16 | 3: bf16", None, "runs backwards: '3'"),
    ({0: LOW, "9" * 5000: LOW}, None, "neither a count"),  # Python reads no number of so many digits
    ({0: LOW, 10**5000: LOW}, None, "neither a count"),
    ({0: LOW, f"1.{'3' * 5000}%": LOW}, 100, "neither a count"),
    ({0: LOW, "90%": LOW}, None, "give total_steps"),
    ({0: LOW, "100%": LOW}, 10, "past the end"),
    ({0: LOW, 10: LOW}, 10, "past the end of the run: its last iteration is 9"),
    ({0: LOW, 2**40: LOW}, None, "past the end"),
    ({0: LOW, -1: LOW}, None, "neither a count"),
    ({0: LOW, 0.9: LOW}, 10, "write '90%'"),
    ({0: LOW, True: LOW}, None, "neither a count"),
    ({0: LOW, "late": LOW}, None, "neither a count"),
    ({0: LOW, 3: "mixed_bfloat61"}, None, "at 3: unknown policy 'mixed_bfloat61'; did you mean"),
    ({0: LOW, 3: None}, None, "at 3: a policy, its name or a table"),
    ({0: LOW, 3: "mixed_float16;state_dtype=bfloat16"}, None, "at 3: .* keeps moments otherwise"),
    ({0: LOW, 3: "bfloat16"}, None, "at 3: policy 'bfloat16' keeps parameters in bfloat16.*'mixed_bfloat16'"),
    ({0: LOW, 3: "mixed_float16;layers=a|b:float32"}, None, "must not contain"),
    ("float32", None, "is not written 'iteration: policy'"),
    (7, None, "must map iterations to policies"),
    ([0, LOW], None, "must map iterations to policies"),
    (b"0: float32", None, "must map iterations to policies"),
]


@pytest.mark.parametrize(("given", "total", "said"), REFUSED, ids=lambda each: ua.errors.shown(each, 30))
def test_what_is_no_schedule_is_refused(given, total, said):
    with pytest.raises(ua.PolicyError, match=said):
        PolicySchedule.of(given, total)


@pytest.mark.parametrize("total", [0, -1, 1.5, True, "10", math.nan])
def test_total_steps_is_a_count(total):
    with pytest.raises(ua.ConfigError, match="total_steps must be a whole number"):
        PolicySchedule.of({0: LOW}, total)


def test_a_run_has_one_loss_scale():
    def scale(*policies):
        return PolicySchedule.of(dict(enumerate(policies))).loss_scale

    assert scale("float32", "mixed_float16") == ua.DynamicLossScale()
    assert scale("float32", "mixed_bfloat16") == ua.NoLossScale()
    assert scale("mixed_float16;loss_scale=8.0", "float32") == ua.StaticLossScale(8.0)
    with pytest.raises(ua.PolicyError, match="different loss scales"):
        scale("mixed_float16;loss_scale=8.0", "mixed_float16")
    both = PolicySchedule.of({0: "mixed_float16;loss_scale=8.0", 1: "mixed_float16"})
    assert both.with_loss_scale(ua.StaticLossScale(2.0)).loss_scale == ua.StaticLossScale(2.0)


def test_arguments_exclude_each_other():
    with pytest.raises(ua.ConfigError, match="policy and schedule exclude each other"):
        resolve("toy", "float32", None, None, None, schedule={0: LOW})
    with pytest.raises(ua.ConfigError, match="total_steps has no effect without schedule"):
        resolve("toy", "float32", None, None, None, total_steps=10)


CONFIG = {"backend": "torch", "schedule": {"0": "float32", "90%": {"name": "mixed_float8", "wgrad": "bfloat16"}}}


def test_a_configuration_holds_a_schedule(tmp_path):
    file = tmp_path / "amp.toml"
    file.write_text(
        '[amp]\ntotal_steps = 100\nschedule = {0 = "float32", "90%" = {name = "fp8", wgrad = "bfloat16"}}\n'
    )
    for source in (file, {**CONFIG, "total_steps": 100}):
        read = read_arguments(source)
        found = PolicySchedule.of(read["schedule"], read["total_steps"])
        assert str(found) == "0: float32 | 90: mixed_float8;wgrad=bfloat16"
    with pytest.raises(ua.ConfigError, match="schedule"):
        read_arguments({"schedule": {"0": 5}})
    with pytest.raises(ua.ConfigError, match="total_steps"):
        read_arguments({**CONFIG, "total_steps": 0})


def test_one_policy_named_elsewhere_takes_the_place_of_all(monkeypatch):
    whole = {**CONFIG, "total_steps": 100}
    read = read_arguments(whole, {"policy": "float32"})
    assert (read["policy"], read["schedule"], read["total_steps"]) == ("float32", None, None)
    read = read_arguments({"policy": "float32"}, {"schedule": {0: LOW}})
    assert (read["policy"], read["schedule"]) == (None, {0: LOW})
    monkeypatch.setenv("UNIFIEDAMP_POLICY", "mixed_float16")
    read = read_arguments(whole)
    assert (read["policy"], read["schedule"], read["total_steps"]) == ("mixed_float16", None, None)
    named = read_arguments(CONFIG, {"schedule": {0: LOW}})
    assert resolve("toy", named["policy"], None, None, None, schedule=named["schedule"]).policy == LOW


@pytest.mark.parametrize("names", [0, 5])
def test_a_policy_with_its_own_loss_scale_goes_before_the_environment(monkeypatch, names):
    """Whichever of the schedule it is."""
    monkeypatch.setenv("UNIFIEDAMP_LOSS_SCALE", "dynamic")
    plan = {0: "float32", 5: "mixed_bfloat16"}
    assert resolve("toy", None, None, None, None, schedule=plan).loss_scale == ua.DynamicLossScale()
    plan[names] += ";loss_scale=static(scale=8.0)"
    assert resolve("toy", None, None, None, None, schedule=plan).loss_scale == ua.StaticLossScale(8.0)


@pytest.mark.parametrize(
    ("policies", "kept"),
    [
        (["float32", "mixed_float16"], None),
        (["mixed_float8;emulate=true", "mixed_bfloat16"], None),
        (["mixed_float8;recipe=delayed", "mixed_float8"], "delayed"),
        (["mixed_float8;recipe=delayed", "float32", "mixed_float8;recipe=delayed;emulate=true"], "delayed"),
    ],
)
def test_one_kind_of_amax_history_is_kept(policies, kept):
    schedule = PolicySchedule.of(dict(enumerate(policies)))
    found = SessionSpec(schedule.at(0), ua.NoLossScale(), schedule=schedule).delayed_recipe
    assert (found and found.scaling) == kept


def test_two_kinds_of_amax_history_are_refused():
    policies = {0: "mixed_float8;recipe=delayed", 5: "mixed_float8;recipe=delayed;margin=2"}
    schedule = PolicySchedule.of(policies)
    with pytest.raises(ua.UnsupportedError, match="one kind of amax history, .* give them the same amax_history and m"):
        _ = SessionSpec(schedule.at(0), ua.NoLossScale(), schedule=schedule).delayed_recipe
