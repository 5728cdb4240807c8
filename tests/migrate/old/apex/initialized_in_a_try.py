"""The import, a registration and initialize are in one try, which says that Apex is missing."""

import argparse

import torch
import torch.nn as nn


def run(args):
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    # half precision
    if args.fp16:
        try:
            from apex import amp

            amp.register_half_function(torch, "einsum")
            net, opt = amp.initialize(net, opt, opt_level=args.level)
        except ImportError:
            raise ImportError("install apex for --fp16") from None
    for _ in range(4):
        opt.zero_grad()
        x = torch.randn(8, 6)
        loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(dim=1))
        if args.fp16:
            with amp.scale_loss(loss, opt) as scaled_loss:
                scaled_loss.backward()
            nn.utils.clip_grad_norm_(amp.master_params(opt), args.norm)
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), args.norm)
        opt.step()
    return net


def train(flag):
    torch.manual_seed(25)
    net = run(argparse.Namespace(fp16=flag, level="O1", norm=0.5))
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
