"""The caller as it was."""

import argparse

import torch
from engine import step


def train(flag):
    torch.manual_seed(4)
    generator, discriminator = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    opt_d = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0, enabled=flag)
    args = argparse.Namespace(amp=flag)
    for _ in range(3):
        step(generator, discriminator, opt_g, opt_d, scaler, args, torch.randn(4, 3), torch.randn(4, 5))
    return [w for m in (generator, discriminator) for p in m.parameters() for w in p.detach().flatten().tolist()]
