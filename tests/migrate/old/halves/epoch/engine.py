"""One epoch: the scaler is a parameter; the region has a flag of the caller's, clipping a limit."""

import torch
from torch.cuda.amp import autocast


def train_epoch(model, loader, optimizer, scaler, criterion, use_amp=True, clip_gradients=None):
    model.train()
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with autocast(enabled=use_amp):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        if clip_gradients:
            # true gradients are clipped
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_gradients)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(loader)
