"""Clipping stands behind each backward pass; here each has its step."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(fp16=flag, accumulation=1, max_grad_norm=0.2)
    torch.manual_seed(6)
    model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.GELU(), torch.nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if args.fp16:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step in range(6):
        x = torch.randn(10, 5)
        loss = (model(x) - x.sum(1, keepdim=True)).abs().mean()
        if args.accumulation > 1:
            loss = loss / args.accumulation
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_grad_norm)
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        if (step + 1) % args.accumulation == 0:
            optimizer.step()
            model.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
