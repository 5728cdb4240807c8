"""What must not be declared away: tests of a policy that a backend refuses are skipped."""

import pytest

import unifiedamp as ua
from unifiedamp.policy import OP_VOCABULARY

LAYERS = ("linear", "conv", "conv_transpose", "attention", "embedding", "rnn", "layer_norm")
"""Operations that are layers of their own in Keras, whose overrides are by layer and never "widest"."""
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
