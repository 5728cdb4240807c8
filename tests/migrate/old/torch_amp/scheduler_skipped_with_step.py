"""The scheduler is left out with the step: the scale is read between scaler.step and scaler.update."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(13)
    net = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = GradScaler(init_scale=2.0**18, enabled=flag)
    rates = []
    for _ in range(6):
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = net(torch.ones(2, 5)).float().pow(2).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        # a step over gradients with infinities is left out
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if not scale > scaler.get_scale():
            scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert not flag or len(set(rates)) < len(rates)
    return rates + [w for p in net.parameters() for w in p.detach().flatten().tolist()]
