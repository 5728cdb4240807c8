"""Bounds of the scale; initialize in a function of its own that returns what it gives."""

import torch
from apex import amp


def build(use_amp):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if use_amp:
        model, optimizer = amp.initialize(
            model, optimizer, opt_level="O1", loss_scale="dynamic", max_loss_scale=2.0**12, min_loss_scale=1.0
        )
    return model, optimizer


def train(flag):
    torch.manual_seed(13)
    net, opt = build(flag)
    for _ in range(4):
        x = torch.randn(6, 4)
        loss = (net(x) - x).abs().mean()
        opt.zero_grad()
        if flag:
            with amp.scale_loss(loss, opt) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        opt.step()
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
