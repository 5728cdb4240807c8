"""A trainer whose base class, in another file, makes model, optimizer and scaler."""

import torch
from torch.cuda.amp import autocast

from .base import BaseTrainer


def make_optimizer(rate, model):
    return torch.optim.SGD(model.parameters(), lr=rate)


class SupervisedTrainer(BaseTrainer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.best = 0.0

    def train_epoch(self, batches):
        self.model.train()
        for inputs, labels in batches:
            self.optimizer.zero_grad(set_to_none=True)
            with autocast():
                predicted = self.model(inputs)
                loss = self.criterion(predicted, labels)

            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def fit(self, epochs):
        for epoch in range(epochs):
            if epoch == 1:
                self.optimizer = make_optimizer(0.05, self.model)
            self.train_epoch([(torch.randn(6, 5), torch.randn(6, 3)) for _ in range(2)])
