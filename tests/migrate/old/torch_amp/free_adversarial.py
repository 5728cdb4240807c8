"""Free adversarial training: the training gradient of the input itself perturbs the next step."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(13)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    delta = torch.zeros(6, 5, requires_grad=True)
    for _ in range(4):
        x = torch.randn(6, 5)
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = (model(x + delta) - 1).pow(2).mean()
        scaler.scale(loss).backward()
        delta.data = (delta + 0.1 * delta.grad.detach().sign()).clamp(-0.3, 0.3)
        delta.grad.zero_()
        scaler.step(optimizer)
        scaler.update()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
