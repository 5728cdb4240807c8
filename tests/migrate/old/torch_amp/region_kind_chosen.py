"""A script that chooses the kind of its regions once, and enters it in the loop."""

from contextlib import suppress

import torch
from torch.cuda.amp import GradScaler


class Args:
    def __init__(self, precision):
        self.precision = precision
        self.clip = 1.0


def train_one_epoch(model, optimizer, scaler, args):
    autocast = torch.cuda.amp.autocast if args.precision == "amp" else suppress
    model.train()
    for _ in range(3):
        x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
        optimizer.zero_grad()
        with autocast():
            logits = model(x)
            total_loss = torch.nn.functional.cross_entropy(logits, y)
        if scaler is not None:
            scaler.scale(total_loss).backward()
            if args.clip is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
        else:
            total_loss.backward()
            if args.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()


def evaluate(model, args):
    autocast = torch.cuda.amp.autocast if args.precision == "amp" else suppress
    model.eval()
    with torch.no_grad(), autocast():
        return model(torch.ones(2, 6)).float().sum().item()


def train(flag):
    torch.manual_seed(16)
    args = Args("amp" if flag else "fp32")
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=128.0) if args.precision == "amp" else None
    for _ in range(2):
        train_one_epoch(model, optimizer, scaler, args)
        evaluate(model, args)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
