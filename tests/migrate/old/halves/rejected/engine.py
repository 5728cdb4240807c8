"""One epoch: a step is left out where the norm of the gradients is not finite."""

import math

import torch
from torch.cuda.amp import autocast


def train_epoch(model, loader, optimizer, scaler, criterion, use_amp=True, max_norm=0.4):
    skipped = 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        with autocast(enabled=use_amp):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if not math.isfinite(grad_norm):
            skipped += 1
        else:
            scaler.step(optimizer)
        scaler.update()
    return skipped
