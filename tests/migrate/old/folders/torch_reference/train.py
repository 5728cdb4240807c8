"""The training script: model, optimizer and scaler are made here, one epoch is trained in engine.py."""

import argparse

import torch
from engine import train_one_epoch
from model import make


def main(args, data_loader):
    model = make()
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if args.opt.startswith("sgd"):
        optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    elif args.opt == "rmsprop":
        optimizer = torch.optim.RMSprop(parameters, lr=0.1)
    else:
        raise RuntimeError(f"Invalid optimizer {args.opt}.")
    scaler = torch.cuda.amp.GradScaler(init_scale=1024.0) if args.amp else None
    model_without_ddp = model
    checkpoint = {}
    for epoch in range(2):
        train_one_epoch(model, criterion, optimizer, data_loader, args, scaler)
        checkpoint = {"model": model_without_ddp.state_dict(), "epoch": epoch}
        if scaler:
            checkpoint["scaler"] = scaler.state_dict()
    if scaler:
        scaler.load_state_dict(checkpoint["scaler"])
    return model


def train(flag):
    torch.manual_seed(0)
    args = argparse.Namespace(amp=flag, opt="sgd", clip_grad_norm=0.5)
    data_loader = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(3)]
    model = main(args, data_loader)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
