"""One loop on one process or on several, with DistributedDataParallel or FSDP2: torchrun starts the processes."""

from __future__ import annotations

import os
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run


def main(
    smoke: Smoke = False,
    policy: PolicyName = None,
    epochs: int = 5,
    batch_size: Annotated[int, typer.Option(help="Of all processes together.")] = 512,
    window: Annotated[int, typer.Option(help="Batches per optimizer step.")] = 1,
    shard: Annotated[bool, typer.Option("--shard", help="Shard parameters (FSDP2) instead of copying them.")] = False,
) -> None:
    """Train a convolutional network; each process trains on its part of every batch."""
    rank, ranks, device = join()
    batch_size, steps = (32, 60 * window) if smoke else (batch_size, None)
    data = images("torch", smoke, channels=1)
    chosen = policy or mixed_policy("torch")
    amp = ua.Amp("torch", chosen, loss_scale="dynamic", accumulate_steps=window, device=device)
    torch.manual_seed(0)  # the same weights in every process
    with amp.scope():
        model: Any = make_model(8 if smoke else 64, data.classes)
    if ranks > 1:
        model = sharded(amp, model) if shard else DistributedDataParallel(model)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True))

    @amp.compile
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = amp.backward(lambda: nn.functional.cross_entropy(model(x), y.long()), optimizer)
        amp.clip_grad_norm(optimizer, 1.0)  # of the whole gradient, over all shards
        amp.step(optimizer)  # applied or skipped by all processes alike
        return loss.detach()

    log = Log(amp, every=20 * window)
    for x, y in batches(amp, data, batch_size, epochs, steps):
        loss = train_step(x[rank::ranks], y[rank::ranks])
        if rank == 0:
            log.add(loss)
    right = accuracy(amp, model, data.test_images, data.test_labels)  # every process takes part
    if rank == 0:
        log.end()
        print(f"{ranks} process{'es' if ranks > 1 else ''}: test accuracy {right:.3f}")
    if ranks > 1:
        dist.barrier()  # so that no process ends while another, or gloo's threads, still exchange tensors
        dist.destroy_process_group()


def join() -> tuple[int, int, str]:
    """Join the other processes if torchrun started this one; return its rank, how many there are, and its device."""
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    if "LOCAL_RANK" not in os.environ:
        return 0, 1, device
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    return dist.get_rank(), dist.get_world_size(), device


def make_model(width: int, classes: int) -> nn.Sequential:
    """Return a network without batch statistics, so that it trains alike on any number of processes."""
    return nn.Sequential(
        *block(1, width), *block(width, 2 * width), *block(2 * width, 4 * width),
        nn.Flatten(), nn.Linear(4 * width * 16, classes),
    )  # fmt: skip


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Return layers that halve the resolution."""
    return [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(4, outputs), nn.GELU()]


def sharded(amp: ua.Amp, model: nn.Sequential) -> nn.Module:
    """Shard each layer with parameters, and the model; parameters are gathered in the policy's dtype."""
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mp_policy=amp.mp_policy())
    return fully_shard(model, mp_policy=amp.mp_policy())


def accuracy(amp: ua.Amp, model: nn.Module, images: Any, labels: Any) -> float:
    """Return the share of right answers on channels-last images."""
    with amp.inference(model):
        logits = model(amp.to_native(images.transpose(0, 3, 1, 2).copy()))
    return float((amp.to_numpy(logits).argmax(1) == labels).mean())


if __name__ == "__main__":
    run(main)
