"""AMP under two conditions, in a branch that trains; a weighted sum of losses of two heads."""

import argparse

import torch
from apex import amp


def train(flag):
    args = argparse.Namespace(do_train=True, amp=flag, device="cuda", opt_level="O1")
    torch.manual_seed(19)
    body, head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)
    if args.do_train:
        optimizer = torch.optim.Adam([{"params": body.parameters()}, {"params": head.parameters()}], lr=0.02)
        if args.device == "cuda":
            if args.amp:
                [body, head], optimizer = amp.initialize([body, head], optimizer, opt_level=args.opt_level)
        for _ in range(4):
            x = torch.randn(8, 6)
            features = torch.tanh(body(x))
            logits = head(features)
            first = torch.nn.functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
            second = features.pow(2).mean()
            loss = first + 0.1 * second
            optimizer.zero_grad()
            if args.amp:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
    return [w for net in (body, head) for p in net.parameters() for w in p.detach().flatten().tolist()]
