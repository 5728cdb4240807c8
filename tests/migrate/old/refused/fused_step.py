"""An optimizer that may step by another method, which updates all parameters at once."""

import torch
from apex import amp
from fused import fuse_optimizer


def train(args, model, loader):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    if args.fuse:
        optimizer = fuse_optimizer(optimizer)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in loader:
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.max_norm)
        if not args.fuse:
            optimizer.step()
        else:
            optimizer.fuse_step()
        optimizer.zero_grad()
