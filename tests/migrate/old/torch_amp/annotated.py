"""An annotated scaler; the wrapped model is called by another name than the optimizer's; custom_fwd."""

import torch
from torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd


class Double(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        return grad * 2


def train(flag):
    torch.manual_seed(13)
    net = torch.nn.Linear(5, 2)
    params = list(net.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)
    scaler: GradScaler = GradScaler(init_scale=1024.0, enabled=flag)
    model = torch.nn.Sequential(net, torch.nn.Tanh())
    for _ in range(4):
        with autocast(enabled=flag):
            loss = Double.apply(model(torch.randn(7, 5))).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
