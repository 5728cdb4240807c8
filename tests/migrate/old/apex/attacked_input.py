"""Fast adversarial training: the gradient of an input is read between two backward passes, and one step follows."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(opt_level="O1" if flag else "O0", loss_scale="128.0" if flag else "1.0")
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    amp_args = {"opt_level": args.opt_level, "loss_scale": args.loss_scale, "verbosity": False}
    model, opt = amp.initialize(model, opt, **amp_args)
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(4):
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        delta = torch.zeros_like(x)
        delta.requires_grad = True
        output = model(x + delta)
        loss = torch.nn.functional.cross_entropy(output, y)
        with amp.scale_loss(loss, opt) as scaled_loss:
            scaled_loss.backward()
        grad = delta.grad.detach()
        delta.data = (delta + 0.3 * torch.sign(grad)).clamp(-0.2, 0.2)
        delta = delta.detach()
        output = model(x + delta)
        loss = criterion(output, y)
        opt.zero_grad()
        with amp.scale_loss(loss, opt) as scaled_loss:
            scaled_loss.backward()
        opt.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
