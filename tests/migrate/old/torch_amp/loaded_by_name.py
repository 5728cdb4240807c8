"""A classifier that other code loads by the name in its options, trained by an optimizer that other code makes."""

import argparse
import types

import torch
import torch.nn as nn


def _load(name, widths):
    torch.manual_seed(31)
    return nn.Sequential(nn.Linear(6, widths[name]), nn.ReLU(), nn.Linear(widths[name], 3))


def _smart_optimizer(model, name, lr):
    return getattr(torch.optim, name)(model.parameters(), lr=lr)


hub = types.SimpleNamespace()
setattr(hub, "load", _load)
setattr(hub, "smart_optimizer", _smart_optimizer)


def run(opt, use_amp):
    if opt.model.endswith("s"):
        model = hub.load(opt.model, {"tiny": 4, "yolos": 8})
    else:
        model = hub.load(opt.model, {"tiny": 4})
    for p in model.parameters():
        p.requires_grad = True
    optimizer = hub.smart_optimizer(model, opt.optimizer, opt.lr)
    criterion = nn.CrossEntropyLoss()
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=use_amp)
    for _ in range(4):
        images, labels = torch.randn(8, 6), torch.randint(3, (8,))
        with torch.cuda.amp.autocast(enabled=use_amp):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model


def train(flag):
    model = run(argparse.Namespace(model="yolos", optimizer="SGD", lr=0.1), flag)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
