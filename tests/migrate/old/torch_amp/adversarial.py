"""Adversarial examples: an inner loop perturbs the input by its own gradients, the outer one trains."""

import torch
from torch.cuda.amp import GradScaler, autocast


def perturbed(model, criterion, x, y, flag):
    delta = torch.zeros_like(x).requires_grad_(True)
    for _ in range(2):
        with autocast(enabled=flag):
            loss = criterion(model(x + delta), y)
        (grad,) = torch.autograd.grad(loss, [delta])
        delta = (delta + 0.1 * grad.sign()).detach().requires_grad_(True)
    return (x + delta).detach()


def train(flag):
    torch.manual_seed(12)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    scaler = GradScaler(enabled=flag, init_scale=64.0)
    for _ in range(3):
        x, y = torch.randn(6, 5), torch.randint(0, 3, (6,))
        x = perturbed(model, criterion, x, y, flag)
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
