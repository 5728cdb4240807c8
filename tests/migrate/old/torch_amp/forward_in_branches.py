"""The forward pass alone is in branches of the flag; the loss behind them, and its scaling, in others."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(41)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=64.0) if flag is True else None
    for _ in range(3):
        x = torch.randn(4, 5)
        if flag:
            with autocast():
                outputs = model(x)
        else:
            outputs = model(x)
        loss = (outputs - 1.0).pow(2).mean()
        if flag:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
