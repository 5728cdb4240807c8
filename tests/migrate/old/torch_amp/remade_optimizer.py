"""A learner whose optimizer is made in __init__, anew before a search for a learning rate, and again where fit wants it."""

import torch
from torch.cuda.amp import GradScaler, autocast


class Learner:
    def __init__(self, model, is_fp16):
        self.model = model
        self.is_fp16 = is_fp16
        self.scaler = GradScaler(init_scale=64.0) if is_fp16 is True else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, data, lr=None):
        if lr is not None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        for x in data:
            self.take(x)

    def find_lr(self, data, start):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=start)
        for x in data:
            self.take(x)

    def take(self, x):
        if self.is_fp16:
            with autocast():
                loss = self.model(x).pow(2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        self.model.zero_grad()


def train(flag):
    torch.manual_seed(38)
    data = [torch.randn(4, 5) for _ in range(2)]
    learner = Learner(torch.nn.Linear(5, 3), flag)
    learner.fit(data)
    learner.find_lr(data, 0.01)
    learner.fit(data, lr=0.05)
    return [w for p in learner.model.parameters() for w in p.detach().flatten().tolist()]
