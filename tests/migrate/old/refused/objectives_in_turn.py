"""An optimizer for each objective, kept in lists; each step takes the next. Old versions of torch have no scaler."""

import torch

if torch.__version__ >= "1.6":
    from torch.cuda.amp import GradScaler, autocast
else:
    GradScaler = None


def train(objectives, steps, use_amp):
    optimizers = []
    for model in objectives:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizers.append(optimizer)
    scaler = GradScaler(enabled=use_amp)
    for step in range(steps):
        place = step % len(objectives)
        model = objectives[place]
        optimizer = optimizers[place]
        with autocast(enabled=use_amp):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
