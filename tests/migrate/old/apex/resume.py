"""amp.state_dict in a checkpoint, behind the flag."""

import argparse
import io

import torch
from apex import amp


def steps(args, model, optimizer, many):
    criterion = torch.nn.MSELoss()
    for _ in range(many):
        x = torch.randn(6, 3)
        out = model(x)
        loss = criterion(out, x[:, :1])
        optimizer.zero_grad()
        if args.amp:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()


def train(flag):
    args = argparse.Namespace(amp=flag)
    torch.manual_seed(12)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if args.amp:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    steps(args, model, optimizer, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if args.amp:
        state["amp"] = amp.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    checkpoint = torch.load(file)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    if args.amp and "amp" in checkpoint:
        amp.load_state_dict(checkpoint["amp"])
    steps(args, model, optimizer, 3)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
