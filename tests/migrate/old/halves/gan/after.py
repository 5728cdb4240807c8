"""The caller with a session."""

import argparse

import torch
from engine import step

import unifiedamp as ua


def train(flag):
    torch.manual_seed(4)
    generator, discriminator = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    opt_d = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    scale = ua.DynamicLossScale(initial_scale=64.0) if flag else "none"
    amp = ua.Amp("torch", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    generator, discriminator, opt_g, opt_d = amp.prepare(generator, discriminator, opt_g, opt_d)
    args = argparse.Namespace(amp=flag)
    for _ in range(3):
        step(generator, discriminator, opt_g, opt_d, amp, args, torch.randn(4, 3), torch.randn(4, 5))
    return [w for m in (generator, discriminator) for p in m.parameters() for w in p.detach().flatten().tolist()]
