"""Optimizers that one function makes again: in stages of fine-tuning, in a branch of the epochs' loop, and in each epoch."""

import torch
from torch import nn


def run_epoch(net, data, optimizer, scaler):
    for x in data:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def in_stages(net, data, warm):
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    if warm:
        optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            run_epoch(net, data, optimizer, scaler)
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=0.05,
    )
    for _ in range(2):
        run_epoch(net, data, optimizer, scaler)


def in_a_branch(net, data):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    for epoch in range(4):
        if epoch == 2:
            optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for x in data:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(x).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def in_each_epoch(net, data):
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    for lr in (0.1, 0.01):
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.5)
        for x in data:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(x).float().abs().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def train(flag):
    torch.manual_seed(12)
    nets = [nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)) for _ in range(3)]
    data = [torch.randn(4, 5) for _ in range(3)]
    in_stages(nets[0], data, flag)
    in_a_branch(nets[1], data)
    in_each_epoch(nets[2], data)
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
