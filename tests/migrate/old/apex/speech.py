"""A speech recognizer: losses that are not finite are skipped before the step."""

import argparse

import torch
from apex import amp


def check_loss(loss, loss_value):
    if loss_value in (float("inf"), float("-inf")) or loss_value != loss_value:
        return False, "not finite"
    return True, ""


def train(flag):
    args = argparse.Namespace(opt_level="O1" if flag else "O0", loss_scale=128.0, max_norm=400)
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Hardtanh(), torch.nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale=args.loss_scale)
    criterion = torch.nn.CrossEntropyLoss()
    for i in range(5):
        inputs, targets = torch.randn(6, 6), torch.randint(0, 5, (6,))
        out = model(inputs)
        out = out.float()
        loss = criterion(out, targets)
        loss = loss / inputs.size(0)
        loss_value = loss.item()
        valid_loss, error = check_loss(loss, loss_value)
        if valid_loss:
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_norm)
            optimizer.step()
        else:
            print(error)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
