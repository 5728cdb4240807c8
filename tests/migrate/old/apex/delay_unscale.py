"""Accumulation with delay_unscale."""

import torch
from apex import amp


def train(flag):
    torch.manual_seed(11)
    model = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1" if flag else "O0")
    for step in range(6):
        x = torch.randn(9, 5)
        loss = (model(x) - x[:, :2]).pow(2).mean() / 3
        delay_unscale = (step + 1) % 3 != 0
        with amp.scale_loss(loss, optimizer, delay_unscale=delay_unscale) as scaled_loss:
            scaled_loss.backward()
        if not delay_unscale:
            optimizer.step()
            optimizer.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
