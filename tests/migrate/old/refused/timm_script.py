"""timm's script: the scaler's helper class, a region kept as a partial, and a step that is either."""

import argparse
from contextlib import suppress
from functools import partial

import torch


class NativeScaler:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        self._scaler.unscale_(optimizer)
        if clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()


def train_one_epoch(model, loader, optimizer, args, amp_autocast=suppress, loss_scaler=None):
    for x, y in loader:
        with amp_autocast():
            loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters())
        else:
            loss.backward()
            if args.clip_grad is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
            optimizer.step()


def train(flag):
    torch.manual_seed(9)
    args = argparse.Namespace(amp=flag, clip_grad=0.5)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp_autocast, loss_scaler = suppress, None
    if args.amp:
        amp_autocast = partial(torch.autocast, device_type="cuda", dtype=torch.float16)
        loss_scaler = NativeScaler()
    train_one_epoch(model, [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(4)], optimizer, args, amp_autocast, loss_scaler)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
