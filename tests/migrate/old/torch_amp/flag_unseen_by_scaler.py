"""The flag is a parameter of the function that trains, which the scaler's line cannot see."""

import torch
from torch.cuda.amp import GradScaler, autocast


def run_epoch(net, batches, optimizer, scaler, half):
    for x in batches:
        if half:
            with autocast():
                loss = (net(x) - x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss = (net(x) - x).pow(2).mean()
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()


def train(flag):
    torch.manual_seed(4)
    model = torch.nn.Linear(5, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = GradScaler(init_scale=1024.0)
    run_epoch(model, [torch.randn(8, 5) for _ in range(5)], optimizer, scaler, half=flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
