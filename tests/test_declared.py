"""What must not be declared away: tests of a policy that a backend refuses are skipped."""

import pytest

import unifiedamp as ua
from unifiedamp.backend import FEATURES
from unifiedamp.conformance.harness import Harness, load_harness
from unifiedamp.conformance.optional import OptionalHarness
from unifiedamp.policy import OP_VOCABULARY

LAYERS = ("linear", "conv", "conv_transpose", "attention", "embedding", "rnn", "layer_norm")
"""Operations that are layers in Keras, whose overrides are by layer and never "widest"."""
OVERRIDES = [("torch", op, choice) for op in OP_VOCABULARY for choice in ("float32", "widest")]
OVERRIDES += [("tensorflow", op, "float32") for op in LAYERS]


@pytest.mark.parametrize(
    "backend", [name for name in ("torch", "tensorflow") if ua.available_backends()[name].installed]
)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_every_machine_runs_these(backend, policy):
    """MXNet's answer depends on the processor; ``on_mxnet/test_bfloat16_here.py`` asks the processor."""
    answer = ua.available_backends()[backend].capabilities.policies[policy]
    assert answer, answer.reason


@pytest.mark.parametrize(
    "backend", [name for name in ("torch", "tensorflow") if ua.available_backends()[name].installed]
)
def test_float64_is_not_refused(backend):
    """The suite skips where ``to_native`` refuses it, as on Apple's GPU."""
    amp = ua.Amp(backend, "float32", device="cpu")
    native = amp.to_native([1 / 3], dtype="float64")
    assert amp.to_numpy(native).tolist() == [1 / 3]
    assert amp.to_numpy(native).dtype == "float64"
    amp.close()


@pytest.mark.parametrize(
    ("backend", "op", "choice"), [each for each in OVERRIDES if ua.available_backends()[each[0]].installed]
)
def test_these_overrides_are_not_refused(backend, op, choice):
    policy = ua.Policy(compute_dtype="bfloat16", op_overrides={op: choice})
    ua.Amp(backend, policy, device="cpu").close()


LACKING = {
    "torch": {"kernel_profile"},
    "tensorflow": {"kernel_profile"},
    "mxnet": {"no_device_wait", "kernel_profile"},
}
"""Features that a backend does not declare on a CPU; tests of these do not count on it."""
WITHOUT = {
    "torch": {
        "device_steps",
        "fit",
        "fixed_graph",
        "recorded_device_run",
        "refused_optimizers",
        "refused_scopes",
        "rescaled_sgd",
        "scheduled_sgd",
    },
    "tensorflow": {
        "cast_model",
        "device_steps",
        "extend",
        "fixed_graph",
        "grouped_sgd",
        "native_backward",
        "native_calls",
        "native_step",
        "recorded_device_run",
        "replace_weight",
        "rescaled_sgd",
        "rest",
        "run_op_on",
    },
    "mxnet": {
        "complex_probe",
        "extend",
        "fit",
        "joined",
        "kept_dense",
        "refused_scopes",
        "replace_weight",
        "rest",
        "wide_dense",
    },
}
"""Native objects and calls that a framework lacks; tests that need one are skipped on it."""


def public_methods(cls):
    return {name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}


@pytest.mark.parametrize("backend", [name for name in LACKING if ua.available_backends()[name].installed])
def test_every_other_feature_is_declared(backend):
    amp = ua.Amp(backend, "float32", device="cpu")
    features = amp.capabilities.features
    amp.close()
    assert set(features) == set(FEATURES)
    assert {name for name, answer in features.items() if not answer} == LACKING[backend]


@pytest.mark.parametrize("backend", [name for name in WITHOUT if ua.available_backends()[name].installed])
def test_the_harness_has_every_other_hook(backend):
    cls = type(load_harness(backend))
    hooks = {name: base for base in (OptionalHarness, Harness) for name in public_methods(base)}
    defaults = {"capabilities", "file", "left_to_prepare"}  # what Harness itself answers
    missing = {name for name, base in hooks.items() if getattr(cls, name) is getattr(base, name)}
    assert missing - defaults == WITHOUT[backend]
