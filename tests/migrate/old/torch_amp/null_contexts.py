"""Contexts that do nothing, which the file defines itself: a class and a generator."""

from contextlib import contextmanager

import torch
from torch.cuda.amp import GradScaler, autocast


class NullContext:
    """Takes what an autocast takes, and does nothing."""

    def __init__(self, *_, **__): ...

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


@contextmanager
def without():
    """Do nothing."""
    yield


def warm_up(model, optimizer, scaler, loader, use_amp):
    region = autocast if use_amp else NullContext
    for x, y in loader:
        optimizer.zero_grad()
        with region(enabled=use_amp):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train(flag):
    torch.manual_seed(9)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=32.0, enabled=flag)
    loader = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(3)]
    warm_up(model, optimizer, scaler, loader, flag)
    for x, y in loader:
        optimizer.zero_grad()
        ctx = autocast() if flag else without()
        with ctx:
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with autocast() if flag else NullContext():
        model(torch.ones(2, 4))
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
