"""One function trains with a scaler, and another without: its optimizer is a parameter of the same name."""

import torch


def amp_epoch(net, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast(enabled=scaler.is_enabled()):
            loss = net(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def plain_epoch(net, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
