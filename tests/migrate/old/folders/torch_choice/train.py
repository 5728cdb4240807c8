"""Makes model, optimizer and scaler, and calls the epochs of another file."""

import argparse

import torch
from engine import train_one_epoch
from torch.cuda.amp import GradScaler


def train(flag):
    args = argparse.Namespace(precision="amp" if flag else "fp32", norm_gradient_clip=0.3)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = GradScaler() if args.precision == "amp" else None
    loader = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]
    for _ in range(2):
        train_one_epoch(model, loader, torch.nn.CrossEntropyLoss(), optimizer, scaler, args)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
