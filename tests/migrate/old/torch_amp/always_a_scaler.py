"""A scaler is always made, the flag is asked for only in the loop; it is an attribute of the arguments."""

import argparse

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    args = argparse.Namespace(fp16=flag)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scaler = GradScaler(init_scale=1024.0)
    for _ in range(5):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        if args.fp16:
            with autocast():
                out = model(x)
                loss = (out - x[:, :1]).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            out = model(x)
            loss = (out - x[:, :1]).pow(2).mean()
            loss.backward()
            optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
