"""The region is a decorator of forward(), and the scaler is used in a closure."""

import torch
from torch.cuda.amp import GradScaler, autocast


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(5, 3)

    @autocast()
    def forward(self, x):
        return self.fc(x)


def train(flag):
    torch.manual_seed(10)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=64.0)

    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x).float() - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(4):
        step(torch.randn(6, 5), torch.randn(6, 3))
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
