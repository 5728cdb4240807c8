"""The caller with a session."""

import torch
from engine import Trainer

import unifiedamp as ua


def train(flag):
    torch.manual_seed(3)
    net = torch.nn.Linear(7, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    scale = ua.DynamicLossScale(initial_scale=128.0) if flag else "none"
    amp = ua.Amp("torch", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    net, optimizer = amp.prepare(net, optimizer)
    trainer = Trainer(net, optimizer, amp)
    for _ in range(6):
        trainer.train_in_steps(torch.randn(4, 7), torch.randn(4, 2))
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
