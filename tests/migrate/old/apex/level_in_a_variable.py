"""O2 by a variable that is a constant: the distances between the outputs are float32, and stay out of regions."""

import argparse

import apex
import torch


def get_trainer(args, net):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    if args.mixed_precision:
        level = "O2"
        net, opt = apex.amp.initialize(net, opt, opt_level=level)
    return Trainer(net, opt, args.mixed_precision)


class Trainer:
    def __init__(self, net, opt, mixed_precision):
        self.net, self.opt, self.mixed_precision = net, opt, mixed_precision

    def epoch(self, batches):
        net, opt = self.net, self.opt
        for x in batches:
            out = net(x)
            near = out @ out.t() / 0.02
            loss = torch.nn.functional.cross_entropy(near, torch.arange(len(x)))
            if self.mixed_precision:
                with apex.amp.scale_loss(loss, opt) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            opt.step()
            net.zero_grad()


def train(flag):
    torch.manual_seed(23)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    trainer = get_trainer(argparse.Namespace(mixed_precision=flag), net)
    trainer.epoch([torch.randn(8, 6) for _ in range(6)])
    return [w for p in trainer.net.parameters() for w in p.detach().flatten().float().tolist()]
