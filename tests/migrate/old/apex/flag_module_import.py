"""The import in a try with a flag, asked for again where AMP begins."""

import argparse

import torch

try:
    from apex import amp

    APEX_AVAILABLE = True
except ImportError:
    amp = None
    APEX_AVAILABLE = False


def train(flag):
    args = argparse.Namespace(fp16=flag)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if args.fp16 and not APEX_AVAILABLE:
        raise RuntimeError("apex is needed")
    if args.fp16:
        if amp is None:
            raise RuntimeError("apex is needed")
        net, opt = amp.initialize(net, opt, opt_level="O1")
    x, y = torch.randn(32, 6), torch.randint(0, 3, (32,))
    for _ in range(6):
        opt.zero_grad()
        out = net(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        if args.fp16:
            with amp.scale_loss(loss, opt) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        opt.step()
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
