"""Adversarial training whose Apex settings are kept in a dict."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(opt_level="O1" if flag else "O0", loss_scale=128.0 if flag else 1.0, master_weights=True)
    torch.manual_seed(9)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    amp_args = dict(opt_level=args.opt_level, loss_scale=args.loss_scale, verbosity=False)
    if args.opt_level == "O2":
        amp_args["master_weights"] = args.master_weights
    model, opt = amp.initialize(model, opt, **amp_args)
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(4):
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        output = model(x)
        loss = criterion(output, y)
        opt.zero_grad()
        with amp.scale_loss(loss, opt) as scaled_loss:
            scaled_loss.backward()
        opt.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
