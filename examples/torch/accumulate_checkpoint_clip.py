"""Gradient accumulation, activation checkpointing and gradient clipping in one loop, for large batches."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch.utils.checkpoint import checkpoint

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run
from examples.models.torch_resnet import FULL, TINY, ResNet


def main(
    smoke: Smoke = False,
    policy: PolicyName = None,
    epochs: int = 5,
    batch_size: int = 256,
    window: Annotated[int, typer.Option(help="Batches per optimizer step.")] = 4,
    clip: Annotated[float, typer.Option(help="Maximum norm of the unscaled gradients.")] = 1.0,
) -> None:
    """Train ResNet-50 with WINDOW batches per step, storing only the input of each block."""
    batch_size, steps = (16, 30 * window) if smoke else (batch_size, None)
    data = images("torch", smoke)
    amp = ua.Amp("torch", policy or mixed_policy("torch"), loss_scale="dynamic", accumulate_steps=window)
    torch.manual_seed(0)
    with amp.scope():
        model = ResNet(*(TINY if smoke else FULL), data.classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.prepare(model, optimizer)

    log, norms = Log(amp, every=10 * window), []
    for x, y in batches(amp, data, batch_size, epochs, steps):
        with amp.autocast():
            loss = nn.functional.cross_entropy(frugal(model, x), y.long())
        with amp.scale_loss(loss, optimizer) as scaled_loss:  # divides the loss by the window size
            scaled_loss.backward()
        norm = amp.clip_grad_norm(optimizer, clip)  # None until the window is full
        if norm is not None:
            norms.append(norm)
        amp.step(optimizer)
        log.add(loss.detach())
    log.end()
    finite = [norm for norm in map(float, norms) if math.isfinite(norm)]  # skipped steps have a non-finite norm
    print(f"norm of the gradients before clipping to {clip:g}: {min(finite):.2f} to {max(finite):.2f}")

    kept, all_kept = (megabytes_kept(amp, forward, model, x) for forward in (frugal, ResNet.forward))
    print(f"kept for the backward pass of one batch: {kept:.2f} MB with checkpointing, {all_kept:.2f} MB without")


def frugal(model: ResNet, x: torch.Tensor) -> torch.Tensor:
    """Run the model; the backward pass recomputes each block from its input under the same policy."""
    x = model.stem(x)
    for block in model.stages:
        x = checkpoint(block, x, use_reentrant=False)
    return model.head(x.mean((2, 3)))


def megabytes_kept(amp: ua.Amp, forward: Any, model: ResNet, x: torch.Tensor) -> float:
    """Return the megabytes that autograd saves in a forward pass, without parameters."""
    kept = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with amp.autocast(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward(model, x)
    del output
    return sum(kept.values()) / 1e6


if __name__ == "__main__":
    run(main)
