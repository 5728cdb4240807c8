"""Model, optimizer and scaler are attributes; accumulation with clipping, and the name amp is a flag."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast


class Trainer:
    def __init__(self, model, lr, amp):
        self.model = model
        self.amp = amp
        self.accumulation = 2
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.scaler = GradScaler("cuda", init_scale=1024.0, enabled=self.amp)

    def train_epoch(self, batches):
        self.optimizer.zero_grad()
        for i, (x, y) in enumerate(batches):
            with autocast(device_type="cuda", enabled=self.amp):
                loss = nn.functional.mse_loss(self.model(x), y) / self.accumulation
            self.scaler.scale(loss).backward()
            if (i + 1) % self.accumulation == 0:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()


def train(flag):
    torch.manual_seed(5)
    trainer = Trainer(nn.Linear(6, 3), 0.02, flag)
    trainer.train_epoch([(torch.randn(8, 6), torch.randn(8, 3)) for _ in range(6)])
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
