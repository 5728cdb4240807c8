"""The caller as it was."""

import torch
from engine import optimize


def train(flag):
    torch.manual_seed(8)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=flag)
    for _ in range(4):
        with torch.cuda.amp.autocast(enabled=flag):
            loss = (model(torch.randn(4, 5)) - 1).square().mean()
        optimize(loss, optimizer, scaler, model, accumulated=2, max_norm=0.1)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
