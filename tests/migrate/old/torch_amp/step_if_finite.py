"""The step is taken where the norm of the gradients is finite; the scaler is updated in any case."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = GradScaler(enabled=flag, init_scale=1024.0)
    for batch in range(6):
        x = torch.randn(8, 5)
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if batch == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if torch.isfinite(norm):
            scaler.step(optimizer)
        scaler.update()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
