"""A classifier trained as torch's own recipe for automatic mixed precision writes it."""

import torch
from torch import nn


def make_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 8, generator=generator)
    return x, x[:, :3].argmax(1)


def train(steps):
    torch.manual_seed(0)
    data, target = make_data()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Creates a GradScaler once at the beginning of training.
    scaler = torch.amp.GradScaler("cpu")  # scales the loss

    losses = []
    for _ in range(steps):
        optimizer.zero_grad()

        # Runs the forward pass with autocasting.
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            output = model(data)
            loss = loss_fn(output, target)

        # Scales loss. Calls backward() on scaled loss to create scaled gradients.
        scaler.scale(loss).backward()

        # Unscales the gradients of optimizer's assigned params in-place
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)

        scaler.step(optimizer)
        # Updates the scale for next iteration.
        scaler.update()
        losses.append(loss.item())
    return losses
