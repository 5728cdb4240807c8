"""Functions that train in float32, whatever the flag of the same name says where the scaler is made."""

import torch
from torch.cuda.amp import GradScaler, autocast

USE_AMP = True


def one_epoch(net, batches, opt, scaler):
    USE_AMP = False  # while looking for the NaN
    for x in batches:
        opt.zero_grad()
        with autocast(enabled=USE_AMP):
            loss = (net(x) - x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


def by_constant(net, batches):
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    scaler = GradScaler(enabled=USE_AMP, init_scale=256.0)
    one_epoch(net, batches, opt, scaler)


class Fit:
    def __init__(self, net, half):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.2)
        self.scaler = GradScaler(enabled=half, init_scale=256.0)

    def epoch(self, batches):
        half = len(batches) > 100
        for x in batches:
            self.opt.zero_grad()
            with autocast(enabled=half):
                loss = (self.net(x) - x).abs().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()


def train(flag):
    torch.manual_seed(21)
    nets = [torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)]
    batches = [torch.randn(8, 6) for _ in range(5)]
    by_constant(nets[0], batches)
    Fit(nets[1], flag).epoch(batches)
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
