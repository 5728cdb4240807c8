"""A step of an optimizer for a loss that its caller has computed, with Apex behind a flag."""

import torch


def optimize(loss, optimizer, model, fp16, max_grad_norm):
    if loss.dim() > 0:
        loss = loss.mean()
    optimizer.zero_grad()
    if fp16:
        from apex import amp

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_grad_norm)
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return loss.item()
