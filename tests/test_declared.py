"""What must not be declared away: tests of a policy that a backend refuses are skipped."""

import pytest

import unifiedamp as ua


@pytest.mark.parametrize(
    "backend", [name for name in ("torch", "tensorflow") if ua.available_backends()[name].installed]
)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_every_machine_runs_these(backend, policy):
    """MXNet's answer depends on the processor; ``on_mxnet/test_bfloat16_here.py`` asks the processor."""
    answer = ua.available_backends()[backend].capabilities.policies[policy]
    assert answer, answer.reason
