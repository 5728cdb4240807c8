"""Apex beside a loss scale of the script's own, from before Apex."""

import torch
from apex import amp


def train(opt, data):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in data:
        loss = model(x).sum()
        if opt.fp16 and opt.loss_scale != 1.0:
            loss = loss * opt.loss_scale
        loss.backward()
        for param in model.parameters():
            param.grad.data = param.grad.data / opt.loss_scale
        optimizer.step()
        model.zero_grad()
