"""An epoch with Apex behind a flag, which another file initializes; the step is shared by both branches."""

import torch
from apex import amp


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    dataloader,
    apex_activated: bool,
):
    model.train()
    for images, targets in dataloader:
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        if losses.item() != losses.item():
            print("not finite")
        else:
            optimizer.zero_grad()
            if apex_activated:
                with amp.scale_loss(losses, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                losses.backward()
            optimizer.step()
    return model
