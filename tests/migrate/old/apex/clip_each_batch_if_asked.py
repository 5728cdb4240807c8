"""Clipping stands behind each backward pass, under a condition; a part is clipped separately."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(fp16=flag, accumulation=1, max_norm=0.1, head_norm=0.05, head_until=4, value=None)
    torch.manual_seed(8)
    body, head = torch.nn.Linear(5, 9), torch.nn.Linear(9, 1)
    model = torch.nn.Sequential(body, torch.nn.GELU(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if args.fp16:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step in range(6):
        x = torch.randn(10, 5)
        loss = (model(x) - x.sum(1, keepdim=True)).abs().mean() / args.accumulation
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            if step > 2:
                torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_norm)
        else:
            loss.backward()
            if step > 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        if args.value is not None:
            torch.nn.utils.clip_grad_value_(model.parameters(), args.value)
        if not step >= args.head_until:
            torch.nn.utils.clip_grad_norm_(head.parameters(), args.head_norm)
        if (step + 1) % args.accumulation == 0:
            optimizer.step()
            model.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
