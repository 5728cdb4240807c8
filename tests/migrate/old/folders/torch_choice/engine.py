"""One epoch: the kind of region is chosen by name, the scaler is given, and None without AMP."""

from contextlib import suppress

import torch


def train_one_epoch(model, loader, criterion, optimizer, scaler, args):
    autocast = torch.cuda.amp.autocast if args.precision == "amp" else suppress
    model.train()
    for images, targets in loader:
        optimizer.zero_grad()
        with autocast():
            total_loss = criterion(model(images), targets)
        if scaler is not None:
            scaler.scale(total_loss).backward()
            if args.norm_gradient_clip is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.norm_gradient_clip, norm_type=2.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            total_loss.backward()
            if args.norm_gradient_clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.norm_gradient_clip, norm_type=2.0)
            optimizer.step()
