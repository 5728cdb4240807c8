"""The scaler and the region come from small functions, for two versions of torch."""

import torch


def make_grad_scaler(enabled, start=1024.0):
    """Return a scaler, however torch makes one."""
    try:
        return torch.amp.GradScaler("cuda", init_scale=start, enabled=enabled)
    except (AttributeError, TypeError):
        return torch.cuda.amp.GradScaler(init_scale=start, enabled=enabled)


def make_region(enabled):
    if hasattr(torch, "amp") and hasattr(torch.amp, "autocast"):
        return torch.amp.autocast("cuda", enabled=enabled, dtype=torch.float16)
    return torch.cuda.amp.autocast(enabled=enabled, dtype=torch.float16)


def train(flag):
    torch.manual_seed(16)
    net = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = make_grad_scaler(flag)
    for _ in range(3):
        optimizer.zero_grad()
        with make_region(enabled=flag):
            loss = net(torch.randn(4, 5)).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
