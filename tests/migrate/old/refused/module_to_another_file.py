"""Apex's module goes to a function of another file, which puts its state back."""

import apex
import torch
from checkpoints import resume


def train(model, loader, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = apex.amp.initialize(model, optimizer, opt_level="O1")
    start = resume(args.path, model=model, optimizer=optimizer, amp=apex.amp)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        with apex.amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return start
