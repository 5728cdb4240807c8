"""A trainer that hands its way of backpropagation to the loop."""

import torch


class Trainer:
    def __init__(self, model, mixed_precision):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.mixed_precision = mixed_precision
        self.scaler = torch.amp.GradScaler("cuda")

    def backprop(self, loss):
        loss.backward()
        self.optimizer.step()

    def backprop_mixed(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, batches):
        if self.mixed_precision:
            self.loop(batches, self.backprop_mixed)
        else:
            # The loop is given what differs.
            self.loop(batches, self.backprop)

    def loop(self, batches, backprop):
        for x in batches:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", enabled=self.mixed_precision):
                loss = self.model(x).sum()
            backprop(loss)
