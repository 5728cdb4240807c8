"""A function starts AMP, and the script calls it under its flag."""

import torch
from apex import amp


def start_amp(model, optimizer):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    return model, optimizer


def main(batches, flag):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if flag:
        model, optimizer = start_amp(model, optimizer)
    for x in batches:
        loss = model(x).mean()
        if flag:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
