"""A function that is given model and optimizer makes the scaler."""

import torch
from torch.cuda.amp import GradScaler, autocast


def fit(network, optim, batches, use_fp16):
    scaler = GradScaler(init_scale=1024.0, enabled=use_fp16)
    for x, y in batches:
        optim.zero_grad()
        with autocast(enabled=use_fp16):
            pred = network(x)
            loss = (pred - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()


def train(flag):
    torch.manual_seed(8)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, optimizer, [(torch.randn(6, 4), torch.randn(6, 2)) for _ in range(5)], flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
