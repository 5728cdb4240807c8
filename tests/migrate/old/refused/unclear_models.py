"""Generator and discriminator are parameters: nothing says which optimizer trains which."""

import torch


def train(loader, generate, judge, optimizer_a, optimizer_b):
    scaler = torch.cuda.amp.GradScaler()
    for x in loader:
        with torch.cuda.amp.autocast():
            loss_a = judge(x).mean()
        scaler.scale(loss_a).backward()
        scaler.step(optimizer_a)
        with torch.cuda.amp.autocast():
            loss_b = judge(generate(x)).mean()
        scaler.scale(loss_b).backward()
        scaler.step(optimizer_b)
        scaler.update()
