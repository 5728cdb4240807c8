"""Steps of several GPUs, captured with their communication: the results are those of eager. Needs two GPUs."""

import pytest
import torch
from ranks import checked, run_ranks
from shared_steps import STEPS, follows, trained

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

WRAPS = ["ddp", "ddp, bfloat16 sum", "fsdp2", "hsdp", "fsdp2 + tensor parallel"]


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("mode", ["default", "max"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_captured_steps_of_two_ranks_are_those_of_eager(wrap, policy, mode, window):
    eager = checked(run_ranks(trained, wrap, policy, "off", window, backend="nccl"))
    compiled = checked(run_ranks(trained, wrap, policy, mode, window, backend="nccl"))
    for one, other in zip(eager, compiled, strict=True):
        follows(one, other, 2.0**-5 if mode == "max" else 1e-3)
        assert other[3] >= window, "each place of a window is captured"
        assert other[4] == []
    assert compiled[0][2:] == compiled[1][2:]
    assert all(compiled[0][1][name] == compiled[1][1][name] for name in compiled[0][1] if "running" not in name)
    if policy == "mixed_float16":
        assert (compiled[0][2]["applied_steps"], compiled[0][2]["skipped_steps"]) == (STEPS - 2, 2)
