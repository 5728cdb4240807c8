"""Calls that pass no scaler to functions that train, keep it, hand it on, or ask for it beside a region that is on."""

import torch


def run(net, x, optimizer, scaler):
    with torch.cuda.amp.autocast(enabled=scaler is not None):
        loss = net(x).mean()
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()


def outer(net, x, optimizer, scaler):
    run(net, x, optimizer, scaler)


def always(net, x, optimizer, scaler=None):
    with torch.cuda.amp.autocast():
        loss = net(x).mean()
    if scaler is None:
        return loss.item()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return 0.0


class Keeper:
    def __init__(self, scaler=None):
        self.scaler = scaler


def main(net, x):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler() if torch.cuda.is_available() else None
    outer(net, x, optimizer, scaler)
    always(net, x, optimizer, scaler)
    Keeper(scaler)
    run(net, x, optimizer, None)
    outer(net, x, optimizer, scaler=None)
    always(net, x, optimizer)
    Keeper()
