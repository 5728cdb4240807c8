"""The branches split at the backward pass and meet for clipping and the step."""

import argparse

import torch
from torch.cuda import amp


def get_optimizer(args, model):
    return torch.optim.SGD(model.parameters(), lr=args.lr)


def train(flag):
    args = argparse.Namespace(fp16=flag, lr=0.1, accumulation=2)
    torch.manual_seed(12)
    model = torch.nn.Linear(6, 2)
    optimizer = get_optimizer(args, model)
    if args.fp16:
        scaler = amp.GradScaler(init_scale=1024.0)
    for step in range(6):
        x = torch.randn(8, 6)
        if args.fp16:
            with amp.autocast():
                loss = model(x).pow(2).mean()
        else:
            loss = model(x).pow(2).mean()
        if args.accumulation > 1:
            loss = loss / args.accumulation
        if args.fp16:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (step + 1) % args.accumulation == 0:
            if args.fp16:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            if args.fp16:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            model.zero_grad()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
