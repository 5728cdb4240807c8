"""The caller with a session."""

import torch
from engine import do_train

import unifiedamp as ua


def train(flag):
    torch.manual_seed(6)
    source, target = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(target.parameters(), lr=0.2)
    amp = ua.Amp("torch", policy="O1" if flag else "float32")
    source, target, optimizer = amp.prepare(source, target, optimizer)
    loader = [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(3)]
    do_train(source, target, loader, optimizer, amp=amp)
    return [w for p in target.parameters() for w in p.detach().flatten().tolist()]
