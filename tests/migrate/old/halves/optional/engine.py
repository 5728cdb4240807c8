"""A scaler or None: without it the step is a plain one, with a limit of its gradients."""

import sys

import torch


def train_one_epoch(model, optimizer, data_loader, scaler=None, schedulers=None):
    model.train()
    losses_of_epoch = []
    for images, targets in data_loader:
        with torch.amp.autocast("cuda", enabled=(scaler is not None)):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
            loss_value = sum(loss.item() for loss in loss_dict.values())
        if loss_value != loss_value:
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            clipping_value = 5
            torch.nn.utils.clip_grad_norm_(model.parameters(), clipping_value)
            optimizer.step()
        if schedulers is not None:
            for scheduler in schedulers:
                scheduler.step()
        losses_of_epoch.append(loss_value)
    return losses_of_epoch
