"""The region is chosen before it is entered: by the flag, and by the torch that is there."""

from contextlib import nullcontext

import torch
from torch.cuda.amp import GradScaler


def train(flag):
    torch.manual_seed(39)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    if flag:
        context = torch.cuda.amp.autocast()
    else:
        context = nullcontext()
    for _ in range(2):
        with context:
            loss = (model(torch.randn(4, 5)) - 1.0).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for _ in range(2):
        if hasattr(torch.amp, "autocast"):
            region = torch.amp.autocast("cuda", enabled=flag)
        else:
            region = torch.cuda.amp.autocast(enabled=flag)
        with region:
            loss = (model(torch.randn(4, 5)) - 1.0).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
