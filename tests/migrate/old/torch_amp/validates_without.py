"""Functions that train and validate: without a scaler, one computes in float32, and one in half precision all the same."""

import torch
from torch import nn


def run_epoch(net, batches, seen, optimizer=None, scaler=None):
    last = 0.0
    for x, y in batches:
        with torch.set_grad_enabled(optimizer is not None):
            with torch.cuda.amp.autocast(enabled=scaler is not None):
                seen.append(float(torch.is_autocast_enabled("cpu")))
                loss = nn.functional.mse_loss(net(x).float(), y)
            if optimizer is None:
                last = loss.item()
                continue
            optimizer.zero_grad()
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
    if optimizer is not None and scaler is not None:
        seen.append(scaler.get_scale())
    return last


def take(net, x, seen, optimizer, grad_scaler=None, half=True):
    with torch.autocast("cuda", dtype=torch.float16, enabled=half):
        seen.append(float(torch.is_autocast_enabled("cpu")))
        loss = net(x).float().square().mean()
    if optimizer is not None:
        optimizer.zero_grad()
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
    return loss.item()


def first(flag, seen):
    net = nn.Linear(6, 3)
    data = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(3)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    scaler = torch.cuda.amp.GradScaler(init_scale=512.0) if flag else None
    for _ in range(2):
        run_epoch(net, data, seen, optimizer, scaler)
        seen.append(run_epoch(net, data[:1], seen, None, None))
        seen.append(run_epoch(net, data[1:], seen=seen))
    return net


def second(flag, seen):
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    grad_scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=flag)
    for _ in range(3):
        take(net, torch.ones(2, 6), seen, optimizer, grad_scaler, half=flag)
        seen.append(take(net, torch.zeros(2, 6), seen, optimizer=None, grad_scaler=None))
        seen.append(take(net, torch.zeros(2, 6), seen, None, half=flag))
    return net


def train(flag):
    torch.manual_seed(3)
    seen = []
    nets = [first(flag, seen), second(flag, seen)]
    return seen + [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
