"""A script at module level, with functions that read its globals."""

import torch
from torch.cuda.amp import GradScaler, autocast

torch.manual_seed(9)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler(init_scale=1024.0)


def train_step(x, y):
    optimizer.zero_grad()
    with autocast():
        loss = (model(x) - y).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def train(flag):
    for _ in range(4):
        train_step(torch.randn(6, 4), torch.randn(6, 2))
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
