"""The flag chooses the optimizer too."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(fp16=flag)
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 3)
    if args.fp16:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", keep_batchnorm_fp32=None)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x, y = torch.randn(24, 4), torch.randint(0, 3, (24,))
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(4):
        optimizer.zero_grad()
        logits = model(x)
        loss = criterion(logits.float(), y)
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
