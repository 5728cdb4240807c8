"""The base class as it was."""

import torch


class BaseTrainer:
    def __init__(self):
        self.model = torch.nn.Linear(5, 3)
        self.criterion = torch.nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.scaler = torch.cuda.amp.GradScaler(init_scale=64.0)
