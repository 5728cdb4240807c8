"""The scheduler steps only where the optimizer did: the scale is compared before and after."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(11)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = GradScaler(init_scale=64.0, enabled=flag)
    for _ in range(4):
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = (model(torch.randn(6, 5)) - 1).pow(2).mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skip_lr_sched = scale > scaler.get_scale()
        if not skip_lr_sched:
            scheduler.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
