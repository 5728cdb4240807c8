"""Steps of several GPUs, captured with their communication: the results are those of eager. Needs two GPUs."""

import math

import pytest
import torch
from ranks import run_ranks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unifiedamp as ua

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

STEPS = 32
SCALE = ua.DynamicLossScale(initial_scale=1024.0, growth_interval=7)


def make_model(wrap, amp):
    torch.manual_seed(0)
    with torch.device("cuda"):
        norm = torch.nn.BatchNorm2d(16) if wrap == "ddp" else torch.nn.GroupNorm(4, 16)
        model = torch.nn.Sequential(
            torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), norm, torch.nn.GELU()),
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 36, 64), torch.nn.GELU()),
            torch.nn.Linear(64, 10),
        )
    if wrap == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import fully_shard

    for part in (*model, model):
        fully_shard(part, mp_policy=amp.mp_policy())
    return model


def trained(rank, wrap, policy, mode, window):
    amp = ua.Amp(
        "torch", policy, compile=mode, device=f"cuda:{rank}", accumulate_steps=window,
        loss_scale=SCALE if policy == "mixed_float16" else None,
    )  # fmt: skip
    model = make_model(wrap, amp)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))

    @amp.compile
    def step(x, y):
        loss = amp.backward(lambda: cross_entropy(model(x), y), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)
        return loss.detach()

    generator = torch.Generator(device="cuda").manual_seed(rank + 1)
    losses = []
    for index in range(STEPS * window):
        rows = 24 if rank and index // window in (20, 21) else 32  # one rank's last batches are shorter
        x = torch.randn(rows, 3, 8, 8, device="cuda", generator=generator)
        y = torch.randint(0, 10, (rows,), device="cuda", generator=generator)
        if policy == "mixed_float16" and rank and index in (15 * window, 25 * window):
            x[0] = math.inf
        if index == 18 * window:
            optimizer.param_groups[0]["lr"] = 5e-4
        losses.append(float(step(x, y)))
    captured = getattr(step, "__wrapped__", step)
    graphs = len(captured.graphs) if mode != "off" else 0
    weights = {name: array.tolist() for name, array in amp.master_weights(model).items() if "num_batches" not in name}
    return losses, weights, amp.state_dict()["state"], graphs, sorted(amp.backend.spec.warned)


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("mode", ["default", "max"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_captured_steps_of_two_ranks_are_those_of_eager(wrap, policy, mode, window):
    eager = run_ranks(trained, wrap, policy, "off", window, backend="nccl")
    compiled = run_ranks(trained, wrap, policy, mode, window, backend="nccl")
    close = 2.0**-5 if mode == "max" else 1e-3
    for one, other in zip(eager, compiled, strict=True):
        for answer in (one, other):
            assert not isinstance(answer, str), answer
        assert other[2] == one[2]
        assert other[3] >= window, "each place of a window is captured"
        assert other[4] == []
        torch.testing.assert_close(torch.tensor(other[0]), torch.tensor(one[0]), rtol=close, atol=close, equal_nan=True)
        for name, values in one[1].items():
            torch.testing.assert_close(torch.tensor(other[1][name]), torch.tensor(values), rtol=close, atol=close)
    assert compiled[0][2:] == compiled[1][2:]
    assert all(compiled[0][1][name] == compiled[1][1][name] for name in compiled[0][1] if "running" not in name)
    if policy == "mixed_float16":
        assert (compiled[0][2]["applied_steps"], compiled[0][2]["skipped_steps"]) == (STEPS - 2, 2)
