"""if/else around the scaler; the region is chosen by an expression."""

import contextlib

import torch


def train(flag):
    torch.manual_seed(2)
    net = torch.nn.Linear(6, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    if flag:
        scaler = torch.cuda.amp.GradScaler(init_scale=1024.0, growth_interval=2)
    else:
        scaler = None
    x, y = torch.randn(20, 6), torch.randn(20, 2)
    for _ in range(5):
        with torch.cuda.amp.autocast() if flag else contextlib.nullcontext():
            loss = (net(x) - y).abs().mean()
        opt.zero_grad(set_to_none=True)
        if scaler is None:
            loss.backward()
            opt.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
