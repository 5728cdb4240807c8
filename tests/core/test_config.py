"""Configuration files, mappings and the environment, against a backend that needs no framework."""

import contextlib
import json

import pytest
from effort import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st

from unifiedamp import (
    Amp,
    AmpError,
    BackendNotFoundError,
    ConfigError,
    DynamicLossScale,
    NoLossScale,
    Policy,
    PolicyError,
    StaticLossScale,
)
from unifiedamp.backend import EnvironmentDefaults
from unifiedamp.config.arguments import Arguments, read_arguments, read_config
from unifiedamp.config.resolve import resolve


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_file(tmp_path, suffix):
    path = tmp_path / f"amp{suffix}"
    toml = 'backend = "torch"\npolicy = "mixed_bfloat16"\naccumulate_steps = 4\n[loss_scale]\ninitial_scale = 8.0\n'
    value = {
        "backend": "torch",
        "policy": "mixed_bfloat16",
        "accumulate_steps": 4,
        "loss_scale": {"initial_scale": 8.0},
    }
    path.write_text(toml if suffix == ".toml" else json.dumps(value))
    arguments = read_config(path)
    assert {key: arguments[key] for key in value} == value


def test_amp_table_and_policy_table():
    arguments = read_config({"amp": {"policy": {"name": "mixed_bfloat16", "op_overrides": {"softmax": "float32"}}}})
    assert arguments["policy"] == Policy.parse("mixed_bfloat16;ops=softmax:float32")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"polcy": "float32"}, "unknown key 'polcy'; did you mean 'policy'"),
        ({"accumulate_steps": "4"}, "accumulate_steps: .*integer.*'4'"),
        ({"strict": 1}, "strict"),
        ({"compile": True}, "compile: .*string"),
        ({"policy": {"nam": "float32"}}, "unknown key 'policy.nam'; did you mean 'name'"),
        ({"policy": 3}, "policy"),
        ({"backend_options": {"torch": 3}}, "backend_options.torch"),
        ({"amp": 3}, "expected a table"),
    ],
)
def test_wrong_keys_and_types_are_named(table, message):
    with pytest.raises(ConfigError, match=message):
        read_config(table)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("amp.toml", "backend = ", "not valid TOML"),
        ("amp.json", "[1, 2]", "must hold a table"),
        ("amp.json", "{", "not valid JSON"),
        ("amp.yaml", "a: 1", "write it as .toml or .json"),
        ("absent.toml", None, "cannot be read"),
    ],
)
def test_unreadable_files(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / name)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["backend", "policy", "loss_scale", "accumulate_steps", "strict", "backend_options", "amp"])


@settings(max_examples=FUZZ, deadline=None)
@given(st.dictionaries(keys | st.text(max_size=8), json_values, max_size=4))
def test_only_our_errors_come_out(table):
    with contextlib.suppress(AmpError):
        read_config(table)


@pytest.fixture
def stand_in(monkeypatch):
    """A backend class that says what it is asked, in place of a framework's."""

    class StandIn:
        defaults = EnvironmentDefaults()

        @staticmethod
        def default_policy(device):
            return "mixed_bfloat16", "it says so"

        @classmethod
        def environment_defaults(cls, device, options):
            return cls.defaults

    monkeypatch.setattr("unifiedamp.config.plugins.load_backend", lambda name: StandIn)
    for name in ("BACKEND", "POLICY", "LOSS_SCALE"):
        monkeypatch.delenv(f"UNIFIEDAMP_{name}", raising=False)
    return StandIn


def test_environment_fills_what_is_left_out(stand_in, monkeypatch):
    monkeypatch.setenv("UNIFIEDAMP_BACKEND", "torch")
    monkeypatch.setenv("UNIFIEDAMP_POLICY", "bf16")
    monkeypatch.setenv("UNIFIEDAMP_LOSS_SCALE", "dynamic(initial_scale=8.0)")
    resolved = resolve(None, None, None, None, None)
    assert str(resolved.policy) == "mixed_bfloat16;loss_scale=dynamic(initial_scale=8.0)"
    assert resolved.loss_scale == DynamicLossScale(initial_scale=8.0)
    assert resolved.origins["policy"] == "environment variable UNIFIEDAMP_POLICY"
    assert resolve("torch", "float32", None, None, None).origins["policy"] == "argument"


def test_default_policy_is_the_devices_best(stand_in):
    resolved = resolve("torch", None, None, None, None)
    assert str(resolved.policy) == "mixed_bfloat16"
    assert resolved.origins["policy"] == "the device's best: it says so"


WRITTEN = {"backend": "tensorflow", "policy": "float32", "loss_scale": 128}


def test_environment_goes_before_a_configuration(stand_in, monkeypatch):
    assert read_arguments(WRITTEN).origins == dict.fromkeys(WRITTEN, "configuration")
    monkeypatch.setenv("UNIFIEDAMP_POLICY", "mixed_float16")
    monkeypatch.setenv("UNIFIEDAMP_LOSS_SCALE", "dynamic")
    monkeypatch.setenv("UNIFIEDAMP_BACKEND", "")  # as if it were not set
    read = read_arguments(WRITTEN)
    assert (read["backend"], read["policy"], read["loss_scale"]) == ("tensorflow", "mixed_float16", "dynamic")
    assert read.origins == {
        "backend": "configuration",
        "policy": "environment variable UNIFIEDAMP_POLICY, before the configuration's 'float32'",
        "loss_scale": "environment variable UNIFIEDAMP_LOSS_SCALE, before the configuration's 'static(scale=128.0)'",
    }
    assert read_arguments({}).origins["policy"] == "environment variable UNIFIEDAMP_POLICY"


def test_what_is_named_goes_before_both(stand_in, monkeypatch):
    for name, text in (("BACKEND", "mxnet"), ("POLICY", "mixed_float16"), ("LOSS_SCALE", "dynamic")):
        monkeypatch.setenv(f"UNIFIEDAMP_{name}", text)
    read = read_arguments(WRITTEN, {"backend": "torch", "policy": "bf16", "device": None})
    assert (read["backend"], read["policy"], read["loss_scale"]) == ("torch", "bf16", "dynamic")
    assert set(read.origins) == {"loss_scale"}
    # A policy that is named with its own loss scale is named whole.
    own = "mixed_float16;loss_scale=static(scale=8.0)"
    assert read_arguments({}, {"policy": own})["loss_scale"] is None
    assert resolve("torch", own, None, None, None).loss_scale == StaticLossScale(8.0)


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("BACKEND", "troch", BackendNotFoundError, "UNIFIEDAMP_BACKEND: unknown backend 'troch'; did you mean 'torch'"),
        ("POLICY", "mixed_float61", PolicyError, "UNIFIEDAMP_POLICY: unknown policy"),
        ("LOSS_SCALE", "dynamci", ConfigError, "UNIFIEDAMP_LOSS_SCALE: unknown loss scale"),
    ],
)
def test_a_wrong_variable_is_named(stand_in, monkeypatch, name, text, error, message):
    monkeypatch.setenv(f"UNIFIEDAMP_{name}", text)
    with pytest.raises(error, match=f"environment variable {message}"):
        resolve(None if name == "BACKEND" else "torch", None, None, None, None)
    with pytest.raises(error, match=f"environment variable {message}"):
        read_arguments({"backend": "torch"})


def test_a_session_says_where_it_has_its_settings_from(monkeypatch):
    monkeypatch.setenv("UNIFIEDAMP_POLICY", "mixed_float16")
    monkeypatch.setenv("UNIFIEDAMP_LOSS_SCALE", "16")
    config = {"backend": "toy", "policy": "float32"}
    plan = Amp.from_config(config).explain()
    assert plan.row("policy").value.startswith("mixed_float16")
    assert plan.row("policy").note == "environment variable UNIFIEDAMP_POLICY, before the configuration's 'float32'"
    assert plan.row("backend").note == "configuration"
    assert plan.row("loss_scale").value == "static(scale=16.0)"
    named = Amp.from_config(config, policy="float32", loss_scale="none").explain()
    assert (named.row("policy").value, named.row("policy").note) == ("float32;loss_scale=none", "argument")
    again = Amp.from_config(read_arguments(config)).explain()
    assert isinstance(read_arguments(config), Arguments)
    assert again == plan


@pytest.mark.parametrize(
    ("policy", "origin"), [("mixed_float16", "default of the policy"), ("mixed_float16;loss_scale=16", "policy")]
)
def test_a_session_says_whether_its_policy_names_the_loss_scale(policy, origin):
    assert Amp("toy", policy).explain().row("loss_scale").note == origin


def test_a_backend_may_know_variables_of_its_own(stand_in, monkeypatch):
    stand_in.defaults = EnvironmentDefaults("mixed_float16", "environment variable X", {"mode": "x"}, "half of it")
    resolved = resolve("torch", None, None, None, {"torch": {"mode": "y", "z": 1}})
    assert (str(resolved.policy), resolved.origins["policy"]) == ("mixed_float16", "environment variable X")
    assert resolved.options == {"mode": "y", "z": 1}
    assert resolved.warnings == ("half of it",)
    assert resolve("torch", None, None, None, None).options == {"mode": "x"}
    assert resolve("torch", "float32", None, None, None).options == {}
    monkeypatch.setenv("UNIFIEDAMP_POLICY", "float32")
    assert resolve("torch", None, None, None, None).options == {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, None, None, None, None), ConfigError, "backend must be a name"),
        (("torch", 3, None, None, None), PolicyError, "policy must be a Policy"),
        (("torch", None, None, None, {"troch": {}}), ConfigError, "did you mean 'torch'"),
        (("torch", None, None, None, {"torch": 1}), ConfigError, "backend_options.torch must be a mapping"),
        (("torch", None, None, None, [1]), ConfigError, "backend_options must be a mapping"),
        (("torch", "bfloat16", "dynamic", None, None), PolicyError, "needs float32 parameters.*'mixed_bfloat16'"),
        (("torch", "float16;loss_scale=128.0", None, None, None), PolicyError, "float32.*master_weights=True"),
        (("torch", "mixed_float16", None, None, None, True), PolicyError, "parameters are float32 and so are"),
        (("torch", "float16", None, None, None, "yes"), ConfigError, "master_weights must be true or false"),
    ],
)
def test_bad_arguments(stand_in, arguments, error, message):
    with pytest.raises(error, match=message):
        resolve(*arguments)


@pytest.mark.parametrize(
    ("policy", "loss_scale", "expected"),
    [
        ("float16", None, DynamicLossScale()),
        ("bfloat16", None, NoLossScale()),
        ("float16", "none", NoLossScale()),
        ("float16;loss_scale=128.0", None, StaticLossScale(128.0)),
        ("bfloat16", "dynamic", DynamicLossScale()),
    ],
)
def test_a_scale_goes_with_master_weights(stand_in, policy, loss_scale, expected):
    assert resolve("torch", policy, loss_scale, None, None, True).loss_scale == expected
    assert resolve("torch", policy.partition(";")[0], None, None, None).loss_scale == NoLossScale()
