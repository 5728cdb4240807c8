"""The caller as it was."""

import engine
import torch
from apex import amp


def train(flag):
    torch.manual_seed(8)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    if flag:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=128.0)
    for _ in range(4):
        losses = (model(torch.randn(4, 5)) - 1).square()
        engine.optimize(losses, optimizer, model, flag, 0.2)
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
