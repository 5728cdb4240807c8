"""A learner under Apex whose optimizer is made in __init__, and anew before each search for a learning rate."""

import torch
from apex import amp


class Learner:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")

    def find_lr(self, data, start):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=start)
        for x in data:
            self.take(x)

    def take(self, x):
        loss = self.model(x).sum()
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()
        self.model.zero_grad()
