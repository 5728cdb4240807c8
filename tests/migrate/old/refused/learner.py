"""A learner whose optimizer is made in __init__, and anew before each search for a learning rate."""

import torch
from torch.cuda.amp import autocast


class Learner:
    def __init__(self, model, is_fp16):
        self.model = model
        self.is_fp16 = is_fp16
        self.scaler = torch.cuda.amp.GradScaler() if is_fp16 is True else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, data):
        for x in data:
            self.take(x)

    def find_lr(self, data, start):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=start)
        for x in data:
            self.take(x)

    def take(self, x):
        if self.is_fp16:
            with autocast():
                loss = self.model(x).sum()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss = self.model(x).sum()
            loss.backward()
            self.optimizer.step()
        self.model.zero_grad()
