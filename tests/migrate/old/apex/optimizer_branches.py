"""The optimizer is made in branches, and AMP comes with one of two loss scales."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(opt="adam", amp=flag, loss_scale=0)
    torch.manual_seed(4)
    model = torch.nn.Linear(6, 2)
    if args.opt == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elif args.opt == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    else:
        raise ValueError(args.opt)
    if args.amp:
        if args.loss_scale == 0:
            model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale="dynamic")
        else:
            model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=args.loss_scale)
    x, y = torch.randn(20, 6), torch.randn(20, 2)
    for _ in range(5):
        loss = torch.nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        if args.amp:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
