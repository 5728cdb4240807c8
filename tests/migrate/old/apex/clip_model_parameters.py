"""Clipping takes model.parameters(): Apex had unscaled by then."""

import torch
from apex import amp


def train(flag):
    torch.manual_seed(7)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.3)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", enabled=flag)
    for _ in range(5):
        x = torch.randn(12, 8)
        loss = (model(x) - 3 * x[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
