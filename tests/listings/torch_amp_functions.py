"""Gradient accumulation in a function that is given the scaler, with a switch and a checkpoint."""

import io

import torch
from torch import nn
from torch.amp import GradScaler, autocast


def train_one_epoch(model, loader, optimizer, scaler, device, accumulation=2, use_amp=True):
    losses = []
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        with autocast(device_type=device, dtype=torch.bfloat16, enabled=use_amp):
            loss = nn.functional.mse_loss(model(x), y) / accumulation
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if (i + 1) % accumulation == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer); scaler.update()
            optimizer.zero_grad(set_to_none=True)
    return losses


def evaluate(model, loader, device):
    with torch.no_grad(), autocast(device_type=device, dtype=torch.bfloat16):
        return sum(nn.functional.mse_loss(model(x.to(device)), y.to(device)).item() for x, y in loader)


def train(steps, use_amp=True):
    device = "cpu"
    torch.manual_seed(1)
    loader = [(torch.randn(4, 6), torch.randn(4, 2)) for _ in range(steps)]
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = GradScaler(device, init_scale=2.0**10, growth_interval=3, enabled=use_amp)
    losses = train_one_epoch(model, loader, optimizer, scaler=scaler, device=device)
    scheduler.step()
    checkpoint = io.BytesIO()
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, checkpoint)
    checkpoint.seek(0)
    scaler.load_state_dict(torch.load(checkpoint)["scaler"])
    print("scale:", scaler.get_scale())
    losses += train_one_epoch(model, loader, optimizer, scaler, device)
    return [*losses, evaluate(model, loader, device)]
