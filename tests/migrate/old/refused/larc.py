"""Large-batch pretraining: LARC adapts the rates of an SGD, and Apex takes the LARC for an optimizer."""

import torch
from apex import amp
from apex.parallel.LARC import LARC


def main(args, loader):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr)
    optimizer = LARC(optimizer=optimizer, trust_coefficient=0.002, clip=False)
    if args.fp16:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for views, target in loader:
        loss = torch.nn.functional.mse_loss(model(views), target)
        optimizer.zero_grad()
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
