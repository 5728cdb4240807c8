"""The base class with a session."""

import torch

import unifiedamp as ua


class BaseTrainer:
    def __init__(self):
        self.model = torch.nn.Linear(5, 3)
        self.criterion = torch.nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.amp = ua.Amp("torch", policy="mixed_float16", loss_scale=ua.DynamicLossScale(initial_scale=64.0))
        self.model, self.optimizer = self.amp.prepare(self.model, self.optimizer)
