"""The caller with a session."""

import torch
from engine import amp_epoch, plain_epoch

import unifiedamp as ua


def train(flag):
    torch.manual_seed(14)
    nets, loader = [torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)], [torch.randn(4, 5) for _ in range(3)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    scale = ua.DynamicLossScale(initial_scale=256.0) if flag else "none"
    amp = ua.Amp("torch", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    amp.prepare(nets[0], optimizers[0])
    amp_epoch(nets[0], loader, optimizers[0], amp)
    plain_epoch(nets[1], loader, optimizers[1])
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
