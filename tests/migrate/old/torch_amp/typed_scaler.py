"""A script whose functions say that they take a GradScaler."""

from typing import Optional

import torch
from torch.cuda.amp import GradScaler, autocast


def run_epoch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    amp_enabled: bool,
    clip_grad_norm: float,
) -> None:
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        with autocast(enabled=amp_enabled):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        if clip_grad_norm > 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
        scaler.step(optimizer)
        scaler.update()


def finish(model, scaler: Optional[torch.cuda.amp.GradScaler] = None):
    return model if scaler is None else model


def train(flag):
    torch.manual_seed(17)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = GradScaler(enabled=flag, init_scale=128.0)
    run_epoch(model, optimizer, scaler, flag, 0.5)
    return [w for p in finish(model, scaler).parameters() for w in p.detach().flatten().tolist()]
