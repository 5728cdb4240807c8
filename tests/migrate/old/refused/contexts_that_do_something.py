"""Contexts in the place of an autocast that do something, or that another file defines."""

import torch
from helpers import quiet
from torch.cuda.amp import GradScaler, autocast


class Timed:
    def __enter__(self):
        torch.cuda.synchronize()

    def __exit__(self, *exc):
        return None


class Swallowed:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return True


def train(loader, model, use_amp):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=use_amp)
    region = autocast if use_amp else Timed
    for x in loader:
        with region():
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with autocast() if use_amp else Swallowed():
        model(loader[0])
    with autocast() if use_amp else quiet():
        model(loader[0])
