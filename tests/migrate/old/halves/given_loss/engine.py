"""A step of an optimizer for a loss that its caller has computed in a region; the scaler is a parameter."""

import torch


def optimize(loss, optimizer, scaler, model, accumulated=1, max_norm=None):
    optimizer.zero_grad()
    scaler.scale(loss / accumulated).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
