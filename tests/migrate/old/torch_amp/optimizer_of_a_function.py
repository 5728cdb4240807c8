"""The scaler is the module's; the function that trains is given model and optimizer, by other code as well."""

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast

network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.001)

scaler = GradScaler(init_scale=512.0)


def train_epoch(model, loader, optimizer, criterion, accumulate):
    model.train()
    for step, (data, target) in enumerate(loader):
        with autocast():
            output = model(data)
            loss = criterion(output, target) / accumulate
        scaler.scale(loss).backward()
        if (step + 1) % accumulate == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def call_later(function, *args):
    return function(*args)


def train(flag):
    torch.manual_seed(10)
    for layer in network:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    loader = [(torch.randn(5, 2, 3), torch.randint(3, (5,))) for _ in range(4)]
    for _ in range(2):
        call_later(train_epoch, network, loader, optimizer, criterion, 2)
    return [w for p in network.parameters() for w in p.detach().flatten().tolist()]
