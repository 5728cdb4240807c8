"""The optimizer of a second training is made again beside something else."""

import torch


def run(net, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = net(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train(net, loader):
    scaler = torch.cuda.amp.GradScaler()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run(net, loader, optimizer, scaler)
    optimizer, scheduler = torch.optim.SGD(net.parameters(), lr=0.01), None
    run(net, loader, optimizer, scaler)
    return scheduler
