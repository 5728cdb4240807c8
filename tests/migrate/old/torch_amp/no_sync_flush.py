"""Accumulation under no_sync, with a last incomplete window that is stepped behind the loop."""

import contextlib

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(17)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    steps, pending = 2, False
    for i in range(5):
        last = (i + 1) % steps == 0
        with contextlib.nullcontext() if last else contextlib.suppress():
            with autocast(enabled=flag):
                loss = (model(torch.randn(6, 5)) - 1).pow(2).mean() / steps
            scaler.scale(loss).backward()
        pending = True
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            pending = False
    if pending:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
