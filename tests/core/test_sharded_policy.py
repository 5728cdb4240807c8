"""``amp.mp_policy``: torch's form of the policy for sharded models; other frameworks say that they have none."""

from __future__ import annotations

import pytest

import unifiedamp as ua

INSTALLED = [name for name, found in ua.available_backends().items() if found.installed]


@pytest.mark.parametrize("name", [each for each in INSTALLED if each != "torch"])
def test_frameworks_that_shard_no_models_refuse(name):
    with pytest.raises(ua.UnsupportedError, match="mp_policy"):
        ua.Amp(name, "float32").mp_policy()


@pytest.mark.skipif("torch" not in INSTALLED, reason="needs torch")
@pytest.mark.parametrize(
    ("policy", "param", "reduce"),
    [
        ("float32", None, None),
        ("mixed_bfloat16", "torch.bfloat16", "torch.float32"),
        ("mixed_float16", "torch.float16", "torch.float32"),
        ("bfloat16", None, None),
    ],
)
def test_parameters_are_gathered_in_the_compute_dtype(policy, param, reduce):
    found = ua.Amp("torch", policy, device="cpu").mp_policy()
    wanted = [None if each is None else str(each) for each in (found.param_dtype, found.reduce_dtype)]
    assert wanted == [param, reduce]
    assert found.output_dtype is None
