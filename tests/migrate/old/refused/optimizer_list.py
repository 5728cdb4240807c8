"""A list of models and one of optimizers; each is stepped in a loop."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(14)
    models = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with autocast(enabled=flag):
            x = torch.randn(5, 4)
            for model in models:
                x = model(x)
            loss = x.float().pow(2).mean()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    return [w for model in models for p in model.parameters() for w in p.detach().flatten().tolist()]
