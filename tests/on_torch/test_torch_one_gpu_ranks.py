"""What one GPU can show of captured steps of several ranks: a group of one by NCCL, and two ranks by gloo."""

import pytest
import torch
from ranks import checked, run_ranks
from shared_steps import STEPS, follows, make_model, trained

import unifiedamp as ua

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def in_each_mode(rank, wrap, window):
    return {mode: trained(rank, wrap, "mixed_float16", mode, window) for mode in ("off", "default", "max")}


@pytest.mark.parametrize(
    ("wrap", "window"),
    [
        ("ddp", 1),
        ("ddp, bfloat16 sum", 1),
        ("ddp, bfloat16 sum", 2),
        ("fsdp2", 1),
        ("hsdp", 1),
        ("fsdp2 + tensor parallel", 1),
    ],
)
def test_captured_steps_of_a_group_of_one_are_those_of_eager(wrap, window):
    (found,) = checked(run_ranks(in_each_mode, wrap, window, count=1, backend="nccl"))
    for mode in ("default", "max"):
        follows(found["off"], found[mode], 2.0**-5 if mode == "max" else 1e-3)
        assert found[mode][3] >= window, "each place of a window is captured"
        assert found[mode][4] == []
        assert (found[mode][2]["applied_steps"], found[mode][2]["skipped_steps"]) == (STEPS - 2, 2)


def without_waiting(_rank, wrap, mode):
    """Run 100 captured steps, every tenth of them an overflow, where waiting for the GPU raises; return the counts."""
    scale = ua.DynamicLossScale(initial_scale=1024.0, growth_interval=1000)
    amp = ua.Amp("torch", "mixed_float16", compile=mode, device="cuda:0", loss_scale=scale)
    model = make_model(wrap, amp)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))

    @amp.compile
    def step(x):
        amp.backward(lambda: model(x).square().mean(), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)

    good = torch.randn(32, 3, 8, 8, device="cuda")
    bad = torch.full_like(good, float("inf"))
    for _ in range(20):
        step(good)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(100):
            step(bad if index % 10 == 9 else good)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(getattr(step, "__wrapped__", step).graphs) == 1
    return amp.applied_steps, amp.skipped_steps


@pytest.mark.parametrize("mode", ["default", "max"])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_a_hundred_captured_steps_never_wait_for_the_gpu(wrap, mode):
    assert checked(run_ranks(without_waiting, wrap, mode, count=1, backend="nccl")) == [(110, 10)]


def gradients(_rank, wrap):
    """The gradients of one captured step whose batch is given anew: the hook's rounding must be in the graph."""
    amp = ua.Amp("torch", "mixed_bfloat16", compile="default", device="cuda:0")
    model = make_model(wrap, amp)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0, fused=True))

    @amp.compile
    def step(x):
        amp.backward(lambda: model(x).square().mean(), optimizer)
        found = [param.grad.clone() for param in model.parameters()]
        amp.step(optimizer)
        return found

    generator = torch.Generator(device="cuda").manual_seed(0)
    for _ in range(14):
        found = step(torch.randn(32, 3, 8, 8, device="cuda", generator=generator))
    assert len(getattr(step, "__wrapped__", step).graphs) == 1
    return [gradient.flatten().tolist() for gradient in found]


def test_a_captured_sum_is_made_in_its_dtype():
    (whole,) = checked(run_ranks(gradients, "ddp", count=1, backend="nccl"))
    (rounded,) = checked(run_ranks(gradients, "ddp, bfloat16 sum", count=1, backend="nccl"))
    for one, other in zip(map(torch.tensor, whole), map(torch.tensor, rounded), strict=True):
        assert torch.equal(other, other.bfloat16().float())
        torch.testing.assert_close(other, one, rtol=2.0**-7, atol=1e-5)
    assert any(not torch.equal(one, one.bfloat16().float()) for one in map(torch.tensor, whole))


def test_ranks_that_communicate_by_gloo_run_uncaptured():
    """Two ranks on one GPU; rank 1 alone overflows."""
    answers = checked(run_ranks(in_each_mode, "ddp", 1, gpus=True))
    for found in answers:
        for mode in ("default", "max"):
            follows(found["off"], found[mode], 2.0**-5 if mode == "max" else 1e-3)
            assert found[mode][3] == 0
            (warned,) = found[mode][4]
            assert "runs as it is written, because the ranks communicate by gloo" in warned
    assert answers[0]["max"][2] == answers[1]["max"][2]
    assert answers[0]["max"][2]["skipped_steps"] == 2
