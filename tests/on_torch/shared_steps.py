"""A model that several GPUs train, or one in a group of one, in each way of sharing it that is captured."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unifiedamp as ua

STEPS = 32
SCALE = ua.DynamicLossScale(initial_scale=1024.0, growth_interval=7)
SHARDED = ("fsdp2", "hsdp", "fsdp2 + tensor parallel")


def make_model(wrap: str, amp: ua.Amp) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.device("cuda"):
        norm = torch.nn.GroupNorm(4, 16) if wrap in SHARDED else torch.nn.BatchNorm2d(16)
        model = torch.nn.Sequential(
            torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), norm, torch.nn.GELU()),
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 36, 64), torch.nn.GELU()),
            torch.nn.Linear(64, 10),
        )
    if wrap in SHARDED:
        return _sharded(wrap, model, amp)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if wrap == "ddp, bfloat16 sum":
        from unifiedamp_torch.distributed.comm_hook import ReduceIn, reduce_in

        # Amp(reduce_dtype=...) registers it where there are several ranks.
        model.register_comm_hook(ReduceIn(torch.bfloat16, dist.group.WORLD), reduce_in)
    return model


def _sharded(wrap: str, model: Any, amp: ua.Amp) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size, mesh = dist.get_world_size(), None
    if wrap == "hsdp":
        mesh = dist.init_device_mesh("cuda", (size, 1), mesh_dim_names=("copies", "shards"))
    elif wrap == "fsdp2 + tensor parallel":
        both = dist.init_device_mesh("cuda", (1, size), mesh_dim_names=("shards", "parts"))
        parallelize_module(model, both["parts"], {"1.1": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = both["shards"]
    for part in (*model, model):
        fully_shard(part, mesh=mesh, mp_policy=amp.mp_policy())
    return model  # type: ignore[no-any-return]


def trained(rank: int, wrap: str, policy: str, mode: str, window: int) -> tuple[Any, ...]:
    """Train; return losses, weights, the session's state, how many graphs were captured, and what was warned of.

    The last rank's gradients overflow twice in float16. A rank's batches are its own, but for parts of one model.
    """
    last = rank == dist.get_world_size() - 1
    amp = ua.Amp(
        "torch", policy, compile=mode, device=f"cuda:{rank % torch.cuda.device_count()}", accumulate_steps=window,
        loss_scale=SCALE if policy == "mixed_float16" else None,
    )  # fmt: skip
    model = make_model(wrap, amp)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = amp.backward(lambda: cross_entropy(model(x), y), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)
        return loss.detach()

    parts = wrap == "fsdp2 + tensor parallel"
    generator = torch.Generator(device="cuda").manual_seed(1 if parts else rank + 1)
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = amp.compile(step)
        for index in range(STEPS * window):
            # one rank's last batches are shorter
            rows = 24 if rank and not parts and index // window in (20, 21) else 32
            x = torch.randn(rows, 3, 8, 8, device="cuda", generator=generator)
            y = torch.randint(0, 10, (rows,), device="cuda", generator=generator)
            if policy == "mixed_float16" and (last or parts) and index in (15 * window, 25 * window):
                x[0] = math.inf
            if index == 18 * window:
                optimizer.param_groups[0]["lr"] = 5e-4
            losses.append(float(compiled(x, y)))
    captured = getattr(compiled, "__wrapped__", compiled)
    weights = {name: array.tolist() for name, array in amp.master_weights(model).items() if "num_batches" not in name}
    warned = [str(each.message) for each in caught if issubclass(each.category, ua.CompileWarning)]
    state, graphs = amp.state_dict()["state"], len(getattr(captured, "graphs", ()))
    amp.close()
    return losses, weights, state, graphs, warned


def follows(eager: tuple[Any, ...], compiled: tuple[Any, ...], close: float) -> None:
    """The same decisions; the same losses and weights, up to rounding."""
    assert compiled[2] == eager[2]
    losses, expected = torch.tensor(compiled[0]), torch.tensor(eager[0])
    torch.testing.assert_close(losses, expected, rtol=close, atol=close, equal_nan=True)
    for name, values in eager[1].items():
        torch.testing.assert_close(
            torch.tensor(compiled[1][name]), torch.tensor(values), rtol=close, atol=close,
            equal_nan="running" in name,  # batch norm keeps what it saw of an inf
        )  # fmt: skip
