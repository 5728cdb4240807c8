"""Apex's "gradient accumulation across iterations": unscaling is left to the last micro-batch."""

import torch
from apex import amp


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    x = torch.randn(32, 16)
    y = x @ torch.randn(16, 4)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_fn = torch.nn.MSELoss()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
    iters_to_accumulate = 4

    losses = []
    for iteration in range(1, steps * iters_to_accumulate + 1):
        start = (iteration - 1) % iters_to_accumulate * 8
        input, target = x[start : start + 8], y[start : start + 8]
        output = model(input)
        loss = loss_fn(output, target) / iters_to_accumulate
        if iteration % iters_to_accumulate == 0:
            # Every iters_to_accumulate iterations, unscale and step
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        else:
            # Otherwise, accumulate gradients, don't unscale or step.
            with amp.scale_loss(loss, optimizer, delay_unscale=True) as scaled_loss:
                scaled_loss.backward()
    return losses
