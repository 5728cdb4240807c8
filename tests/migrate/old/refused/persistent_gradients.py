"""A part of the gradients is kept behind the step, for the next one."""

import torch
from torch.cuda.amp import GradScaler, autocast

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()
for x in data:
    with autocast():
        loss = model(x).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    for param in model.parameters():
        if param.grad is not None:
            param.grad.mul_(0.5)
