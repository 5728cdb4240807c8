"""A learner whose fit makes the optimizer, and whose training_step scales the loss without it."""

import torch
from torch.cuda.amp import GradScaler, autocast


class Learner:
    def __init__(self, model, fp16):
        self.model = model
        self.fp16 = fp16
        self.scaler = GradScaler(init_scale=64.0) if fp16 else None

    def fit(self, data):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for batch in data:
            self.training_step(batch, weight=0.5)
            if self.fp16:
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                optimizer.step()
            self.model.zero_grad()

    def training_step(self, batch, weight=1.0):
        if self.fp16:
            with autocast():
                loss = self.model(batch).square().mean() * weight
        else:
            loss = self.model(batch).square().mean() * weight

        if self.fp16:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        return loss


def train(flag):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    Learner(model, flag).fit([torch.randn(6, 5) for _ in range(3)])
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
