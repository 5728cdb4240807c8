"""The caller with a session."""

import torch
from engine import optimize

import unifiedamp as ua


def train(flag):
    torch.manual_seed(8)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scale = ua.DynamicLossScale(initial_scale=256.0) if flag else "none"
    amp = ua.Amp("torch", policy="mixed_float16" if flag else "float32", loss_scale=scale)
    model, optimizer = amp.prepare(model, optimizer)
    for _ in range(4):
        with amp.autocast():
            loss = (model(torch.randn(4, 5)) - 1).square().mean()
        optimize(loss, optimizer, amp, model, accumulated=2, max_norm=0.1)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
