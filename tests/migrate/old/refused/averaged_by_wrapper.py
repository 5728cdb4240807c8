"""torchcontrib's SWA is made around the optimizer, and Apex is given the wrapper."""

import torch
from apex import amp
from torchcontrib.optim import SWA


class Trainer:
    def __init__(self, cfg, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        if cfg.swa:
            self.optimizer = SWA(self.optimizer, swa_start=10, swa_freq=5)
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()
