"""The caller as it was."""

import torch
from engine import amp_epoch, plain_epoch


def train(flag):
    torch.manual_seed(14)
    nets, loader = [torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)], [torch.randn(4, 5) for _ in range(3)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=flag)
    amp_epoch(nets[0], loader, optimizers[0], scaler)
    plain_epoch(nets[1], loader, optimizers[1])
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
