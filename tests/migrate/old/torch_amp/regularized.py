"""A term is added to gradients before the step, and a manual learning rate scales the loss's weight."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(18)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    for _ in range(3):
        optimizer.zero_grad()
        with autocast(enabled=flag):
            out = model(torch.randn(6, 5))
            loss = (out - 1).pow(2).mean()
        l1 = sum(p.abs().sum() for p in model.parameters())
        loss = loss + 0.01 * l1
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad.add_(0.001 * p.detach())
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
