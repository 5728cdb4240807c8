"""NVIDIA's environment variables choose TensorFlow's graph rewrite where no policy is given."""

import pytest

import unifiedamp as ua
from unifiedamp.backend import Processor
from unifiedamp_tensorflow.device import hardware
from unifiedamp_tensorflow.device.environment import environment_defaults
from unifiedamp_tensorflow.device.selection import DeviceInfo

WITH_SCALE, GRAPH_ALONE = "TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
CPU, GPU = DeviceInfo("cpu", "/CPU:0"), DeviceInfo("gpu:0", "/GPU:0", (9, 0))


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in (WITH_SCALE, GRAPH_ALONE, "UNIFIEDAMP_POLICY", "UNIFIEDAMP_LOSS_SCALE"):
        monkeypatch.delenv(name, raising=False)


def pretend_processor(monkeypatch, *flags):
    monkeypatch.setattr(hardware, "this_processor", lambda: Processor("a CPU", "?", "?", frozenset(flags)))


@pytest.fixture
def able_cpu(monkeypatch):
    pretend_processor(monkeypatch, "avx512f")


@pytest.mark.parametrize(
    ("variable", "device", "policy"),
    [
        (WITH_SCALE, GPU, "mixed_float16;loss_scale=dynamic"),
        (GRAPH_ALONE, GPU, "mixed_float16;loss_scale=none"),
        (WITH_SCALE, CPU, "mixed_bfloat16;loss_scale=dynamic"),
        (GRAPH_ALONE, CPU, "mixed_bfloat16;loss_scale=none"),
    ],
)
@pytest.mark.parametrize("text", ["1", "true"])
def test_what_each_variable_asks_for(able_cpu, monkeypatch, variable, device, policy, text):
    monkeypatch.setenv(variable, text)
    found = environment_defaults(device, {})
    assert (found.policy, dict(found.options)) == (policy, {"mode": "graph_rewrite"})
    assert found.origin == f"environment variable {variable}"
    assert environment_defaults(device, {"mode": "keras"}).policy == ""
    assert environment_defaults(device, {"xla": True}).policy == ""


def test_the_one_with_a_scale_holds_where_both_are_set(able_cpu, monkeypatch):
    monkeypatch.setenv(WITH_SCALE, "1")
    monkeypatch.setenv(GRAPH_ALONE, "1")
    assert environment_defaults(GPU, {}).origin.endswith(WITH_SCALE)


def test_a_session_is_made_by_them(able_cpu, monkeypatch):
    monkeypatch.setenv(GRAPH_ALONE, "0")
    monkeypatch.setenv(WITH_SCALE, "1")
    plan = ua.Amp("tensorflow", device="cpu").explain()
    assert plan.row("mode").value == "graph_rewrite"
    assert plan.row("policy").value.startswith("mixed_bfloat16")
    assert plan.row("policy").note == f"environment variable {WITH_SCALE}"
    assert plan.row("loss_scale").value == "dynamic"
    monkeypatch.setenv(GRAPH_ALONE, "1")
    monkeypatch.delenv(WITH_SCALE)
    assert ua.Amp("tensorflow", device="cpu").explain().row("loss_scale").value == "none"
    monkeypatch.setenv("UNIFIEDAMP_LOSS_SCALE", "64")
    assert ua.Amp("tensorflow", device="cpu").loss_scale == 64.0


def test_a_policy_that_is_given_stands(able_cpu, monkeypatch):
    monkeypatch.setenv(WITH_SCALE, "1")
    assert ua.Amp("tensorflow", "mixed_bfloat16", device="cpu").explain().row("mode").value == "keras"
    monkeypatch.setenv("UNIFIEDAMP_POLICY", "float32")
    plan = ua.Amp("tensorflow", device="cpu").explain()
    assert (plan.row("mode").value, plan.row("policy").value) == ("keras", "float32")


def test_where_the_rewrite_does_nothing_it_is_said(monkeypatch):
    pretend_processor(monkeypatch, "avx2")
    monkeypatch.setenv(GRAPH_ALONE, "1")
    with pytest.warns(ua.PolicyWarning, match=f"{GRAPH_ALONE} has no effect: .*CPUs without AVX512"):
        amp = ua.Amp("tensorflow", device="cpu")
    assert str(amp.policy) == "float32"
    assert amp.explain().row("policy").note.startswith("the device's best")
    with pytest.raises(ua.PolicyNotSupportedError, match="has no effect"):
        ua.Amp("tensorflow", device="cpu", strict=True)


def test_a_value_that_says_neither_is_refused(monkeypatch):
    monkeypatch.setenv(WITH_SCALE, "yes please")
    with pytest.raises(ua.ConfigError, match=f"{WITH_SCALE} must be 0 or 1, got 'yes please'"):
        ua.Amp("tensorflow", device="cpu")
