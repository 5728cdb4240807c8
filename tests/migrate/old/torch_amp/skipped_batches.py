"""Batches whose gradients are too large, or not finite, are left out: by `continue`, and in an `else`."""

import math

import torch


def run(model, batches, flag, log):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    scaler = torch.amp.GradScaler("cuda", enabled=flag, init_scale=512.0)
    for x in batches:
        with torch.autocast("cuda", dtype=torch.float16, enabled=flag):
            loss = (model(x) - x.sum(1, keepdim=True)).abs().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
        if math.isnan(grad_norm) or math.isinf(grad_norm):
            log.append("no step")
            optimizer.zero_grad()
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    return scaler


def run_again(model, batches, flag, log):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    scaler = torch.amp.GradScaler("cuda", enabled=flag, init_scale=512.0)
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=flag):
            loss = (model(x) - x.sum(1, keepdim=True)).abs().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
        if grad_norm < 5.0:
            scaler.step(optimizer)
            scheduler.step()
        else:
            log.append("no step")
        scaler.update()


def train(flag):
    torch.manual_seed(12)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    batches = [torch.randn(8, 5) for _ in range(6)]
    batches[1] = batches[1] * float("inf")
    batches[4] = batches[4] * float("nan")
    log = []
    run(model, batches, flag, log)
    run_again(model, batches, flag, log)
    assert len(log) == 4
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
