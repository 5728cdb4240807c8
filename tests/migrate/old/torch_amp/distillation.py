"""A teacher in the same region, validation in another function, a scaler resumed from a file."""

import argparse
import io

import torch
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast


@torch.no_grad()
def validate(model, loader, args):
    model.eval()
    total = 0.0
    for x, y in loader:
        with autocast(enabled=args.amp):
            total += F.cross_entropy(model(x).float(), y).item()
    model.train()
    return total


def run(student, teacher, loader, args, resume=None):
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    scaler = GradScaler(enabled=args.amp, init_scale=128.0)
    if resume:
        checkpoint = torch.load(resume)
        optimizer.load_state_dict(checkpoint["optimizer"])
        if "scaler" in checkpoint:
            scaler.load_state_dict(checkpoint["scaler"])
    for x, y in loader:
        with autocast(enabled=args.amp):
            with torch.no_grad():
                t_logits = teacher(x)
            s_logits = student(x)
            kd = F.kl_div(F.log_softmax(s_logits, 1), F.softmax(t_logits, 1), reduction="batchmean")
            loss = F.cross_entropy(s_logits, y) + 0.5 * kd
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert validate(student, loader, args) > 0
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, file)
    file.seek(0)
    return file


def train(flag):
    torch.manual_seed(15)
    args = argparse.Namespace(amp=flag)
    model, teacher = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    loader = [(torch.randn(7, 6), torch.randint(0, 3, (7,))) for _ in range(3)]
    run(model, teacher, loader, args, run(model, teacher, loader, args))
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
