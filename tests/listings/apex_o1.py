"""Apex's walk-through: three lines turn a float32 script into mixed precision at O1; gradients are clipped."""

import torch
from apex import amp


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    N, D_in, D_out = 64, 32, 8
    x = torch.randn(N, D_in)
    y = torch.tanh(x @ torch.randn(D_in, D_out))

    model = torch.nn.Linear(D_in, D_out)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

    losses = []
    for t in range(steps):
        y_pred = model(x)
        loss = torch.nn.functional.mse_loss(y_pred, y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses
