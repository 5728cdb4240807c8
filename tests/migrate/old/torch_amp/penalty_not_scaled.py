"""A penalty that goes backward, and steps, without the scaler, every other batch."""

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast


def fit(model, batches, use_amp):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = GradScaler(init_scale=256.0, enabled=use_amp)
    for i, x in enumerate(batches):
        optimizer.zero_grad()
        with autocast(enabled=use_amp):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 2 == 0:
            optimizer.zero_grad()
            penalty = model(x).pow(2).mean()
            penalty.backward()
            optimizer.step()
    return model


def train(flag):
    torch.manual_seed(19)
    model = fit(nn.Linear(6, 2), [torch.randn(8, 6) for _ in range(4)], flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
