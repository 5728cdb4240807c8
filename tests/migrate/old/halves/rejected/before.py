"""The caller as it was."""

import torch
from engine import train_epoch


def train(flag):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler(init_scale=512.0, enabled=flag)
    loader = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]
    loader[1] = (loader[1][0] * float("inf"), loader[1][1])
    for _ in range(2):
        assert train_epoch(model, loader, optimizer, scaler, torch.nn.CrossEntropyLoss(), use_amp=flag) == 1
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
