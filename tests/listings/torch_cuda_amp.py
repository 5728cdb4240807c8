"""A residual network on images as small as digits, as written-ups of torch.cuda.amp train it."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast


def make_data(batches=4, rows=16):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batches, rows, 1, 8, 8, generator=generator)
    targets = torch.randint(0, 4, (batches, rows), generator=generator)
    return list(zip(images, targets))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))


def train(steps):
    model = make_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = make_data()
    losses = []

    # Creates a GradScaler once at the beginning of training.
    scaler = GradScaler()

    for step in range(steps):
        inputs, targets = data[step % len(data)]
        optimizer.zero_grad()

        # Casts operations to mixed precision
        with autocast():
            outputs = model(inputs)
            loss = criterion(outputs, targets)

        # Scales the loss, and calls backward() to create scaled gradients
        scaler.scale(loss).backward()

        # Unscales gradients and calls or skips optimizer.step()
        scaler.step(optimizer)

        # Updates the scale for next iteration
        scaler.update()
        losses.append(loss.item())
    return losses
