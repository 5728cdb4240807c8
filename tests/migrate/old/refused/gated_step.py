"""A step under a condition that may count batches, or reject them: clipping stands before it."""

import torch
from apex import amp


def train(args, loader):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step, x in enumerate(loader):
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.clip)
        if args.should_step(step):
            optimizer.step()
            optimizer.zero_grad()
