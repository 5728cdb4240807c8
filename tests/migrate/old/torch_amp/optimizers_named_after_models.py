"""A function that is given two networks and their optimizers, and makes the scaler."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast


def judged_by(real, fake):
    return nn.functional.relu(1 - real).mean() + nn.functional.relu(1 + fake).mean()


def train_networks(loader, G, G_ema, D, optimizer_G, optimizer_D, loss, flag):
    scaler = GradScaler(init_scale=64.0, enabled=flag)
    for real in loader:
        with autocast(enabled=flag):
            fake = G(torch.randn(8, 3))
            D_loss = loss(D(real), D(fake.detach()))
        optimizer_D.zero_grad()
        scaler.scale(D_loss).backward()
        scaler.step(optimizer_D)

        with autocast(enabled=flag):
            G_loss = -D(fake).mean()
        optimizer_G.zero_grad()
        scaler.scale(G_loss).backward()
        scaler.step(optimizer_G)
        scaler.update()
    G_ema.append(len(loader))


def train(flag):
    torch.manual_seed(6)
    D = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    G = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    fit = {"gan": train_networks}["gan"]
    mean = []
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (G, D)]
    fit([torch.randn(8, 4) for _ in range(4)], G, mean, D, *optimizers, judged_by, flag)
    return [w for p in (*G.parameters(), *D.parameters()) for w in p.detach().flatten().tolist()]
