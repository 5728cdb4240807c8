"""import apex, and apex.amp by its whole name; the loss is a sum of several."""

import apex
import torch


def train(flag):
    torch.manual_seed(15)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = apex.amp.initialize(model, optimizer, opt_level="O1", enabled=flag)
    for _ in range(4):
        x = torch.randn(6, 4)
        losses = {}
        out = model(x)
        losses["first"] = (out[:, 0] - 1).pow(2).mean()
        losses["second"] = out[:, 1].abs().mean()
        total = sum(losses.values())
        optimizer.zero_grad()
        with apex.amp.scale_loss(total, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
