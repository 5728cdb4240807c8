"""nnU-Net's trainer: a GradScaler of the new or the old torch, or none, and what it steps is made in initialize."""

from contextlib import nullcontext

import torch

try:
    from torch import GradScaler  # torch >= 2.3

    OLD_SCALER = False
except ImportError:
    from torch.cuda.amp import GradScaler

    OLD_SCALER = True


class Trainer:
    def __init__(self, use_amp):
        self.use_amp = use_amp
        self.network = None
        self.optimizer = self.lr_scheduler = None
        self.grad_scaler = (GradScaler("cuda") if not OLD_SCALER else GradScaler()) if self.use_amp else None

    def initialize(self):
        self.network = torch.nn.Linear(5, 3)
        self.optimizer, self.lr_scheduler = self.configure_optimizers()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.network.parameters(), 0.05, momentum=0.9, nesterov=True)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def train_step(self, x):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", enabled=True) if self.use_amp else nullcontext():
            value = (self.network(x) - 1.0).pow(2).mean()
        if self.grad_scaler is not None:
            self.grad_scaler.scale(value).backward()
            self.grad_scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        else:
            value.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
            self.optimizer.step()


def train(flag):
    torch.manual_seed(37)
    trainer = Trainer(flag)
    trainer.initialize()
    for _ in range(3):
        trainer.train_step(torch.randn(4, 5))
    return [w for p in trainer.network.parameters() for w in p.detach().flatten().tolist()]
