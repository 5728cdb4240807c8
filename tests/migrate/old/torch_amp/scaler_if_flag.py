"""The scaler is None unless a flag is set, and each step asks for the flag."""

import torch
from torch.cuda import amp


def train(flag):
    use_amp = flag
    torch.manual_seed(1)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scaler = None
    if use_amp:
        scaler = amp.GradScaler(init_scale=1024.0)
    x, y = torch.randn(20, 6), torch.randn(20, 2)
    for _ in range(5):
        optimizer.zero_grad()
        if use_amp:
            with amp.autocast():
                loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
