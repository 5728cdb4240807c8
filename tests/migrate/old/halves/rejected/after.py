"""The caller with a session."""

import torch
from engine import train_epoch

import unifiedamp as ua


def train(flag):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scale = ua.DynamicLossScale(initial_scale=512.0) if flag else "none"
    amp = ua.Amp("torch", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    model, optimizer = amp.prepare(model, optimizer)
    loader = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]
    loader[1] = (loader[1][0] * float("inf"), loader[1][1])
    for _ in range(2):
        assert train_epoch(model, loader, optimizer, amp, torch.nn.CrossEntropyLoss(), use_amp=flag) == 1
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
