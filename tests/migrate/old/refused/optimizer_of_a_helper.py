"""A class keeps the scaler; its method is given loss and optimizer, and so knows no model."""

import torch


class Precision:
    def __init__(self):
        self.scaler = torch.cuda.amp.GradScaler()

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def step(self, model, optimizer):
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        self.scaler.step(optimizer)
        self.scaler.update()


def train(model, optimizer, batches):
    precision = Precision()
    for x in batches:
        with torch.cuda.amp.autocast():
            loss = model(x).mean()
        precision.backward(loss)
        precision.step(model, optimizer)
