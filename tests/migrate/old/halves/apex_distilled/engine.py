"""Distillation with Apex: a helper scales, the function that other files call has the models."""

import torch
import torch.nn.functional as F
from apex import amp


def backward(losses, optimizer):
    # does nothing without mixed precision
    with amp.scale_loss(losses, optimizer) as scaled_losses:
        scaled_losses.backward()


def do_train(model_source, model_target, data_loader, optimizer, limit=0.5):
    model_source.eval()
    model_target.train()
    for images, targets in data_loader:
        with torch.no_grad():
            soft = model_source(images)
        scores = model_target(images)
        distillation = F.mse_loss(scores.float(), soft.float())
        losses = F.cross_entropy(scores.float(), targets) + distillation
        optimizer.zero_grad()
        backward(losses, optimizer)
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), limit)
        optimizer.step()
