"""The optimizer is made of the plain model, the wrapped one is called; validation runs under autocast."""

import torch
from torch.cuda.amp import GradScaler, autocast


class DataParallel(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def validate(ddp_model, x):
    with torch.no_grad(), autocast():
        return ddp_model(x).float().mean().item()


def train(flag):
    torch.manual_seed(16)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}], lr=0.1)
    ddp_model = DataParallel(model)
    scaler = GradScaler(init_scale=1024.0, enabled=flag)
    for _ in range(4):
        x = torch.randn(8, 5)
        with autocast(enabled=flag):
            loss = (ddp_model(x) - x[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    validate(ddp_model, torch.randn(2, 5))
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
