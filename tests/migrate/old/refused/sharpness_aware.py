"""Two backward passes a step: weights are moved and moved back between them."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(16)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    for _ in range(3):
        x = torch.randn(6, 5)
        with autocast(enabled=flag):
            loss = (model(x) - 1).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        moves = []
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for p in model.parameters():
                e = p.grad * 0.05 / norm
                p.add_(e)
                moves.append(e)
        scaler.update()
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = (model(x) - 1).pow(2).mean()
        scaler.scale(loss).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), moves):
                p.sub_(e)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
