"""Apex's README on checkpoints: half of the steps, saved, and the other half from what was saved."""

import io

import torch
from apex import amp


def start(opt_level):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return amp.initialize(model, optimizer, opt_level=opt_level)


def run(model, optimizer, steps):
    torch.manual_seed(1)
    x = torch.randn(64, 16)
    y = x.sum(1, keepdim=True)
    losses = []
    for step in range(steps):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(steps: int) -> list[float]:
    # Initialization
    opt_level = "O1"
    model, optimizer = start(opt_level)

    # Train your model
    losses = run(model, optimizer, steps // 2)

    # Save checkpoint
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}
    file = io.BytesIO()
    torch.save(checkpoint, file)

    # Restore
    file.seek(0)
    model, optimizer = start(opt_level)
    checkpoint = torch.load(file)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    amp.load_state_dict(checkpoint["amp"])

    # Continue training
    return losses + run(model, optimizer, steps - steps // 2)
