"""Gradients are exchanged by hand before each step, inside Apex's block; the micro-batches before leave them alone."""

import torch
from apex import amp
from distributed import all_reduce_and_rescale_tensors
from torch.nn.utils import clip_grad_norm_


def train(opts, loader):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=opts.lr)
    model, optimizer = amp.initialize(model, optimizer, num_losses=2, enabled=opts.fp16, opt_level="O2")
    for step, x in enumerate(loader):
        loss = model(x).square().mean()
        delay_unscale = (step + 1) % opts.accumulate != 0
        with amp.scale_loss(loss, optimizer, delay_unscale=delay_unscale, loss_id=0) as scaled_loss:
            scaled_loss.backward()
            if not delay_unscale:
                grads = [p.grad.data for p in model.parameters() if p.requires_grad and p.grad is not None]
                all_reduce_and_rescale_tensors(grads, 1.0)
        if (step + 1) % opts.accumulate == 0:
            clip_grad_norm_(amp.master_params(optimizer), opts.grad_norm)
            optimizer.step()
            optimizer.zero_grad()
