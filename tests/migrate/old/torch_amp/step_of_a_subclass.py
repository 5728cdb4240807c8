"""A base trainer that leaves what computes the loss to its subclasses."""

from abc import abstractmethod

import torch


class BaseTrainer:
    def __init__(self, model, optimizer, use_amp=False):
        self.model = model
        self.optimizer = optimizer
        self.use_amp = use_amp
        self.scaler = torch.amp.GradScaler("cuda", init_scale=128.0) if use_amp else None

    @abstractmethod
    def train_step(self, batch):
        pass

    def train_epoch(self, loader):
        self.model.train()
        for batch in loader:
            self.optimizer.zero_grad()
            if self.use_amp and self.scaler:
                with torch.amp.autocast("cuda"):
                    metrics = self.train_step(batch)
                    loss = metrics["loss"]
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                metrics = self.train_step(batch)
                loss = metrics["loss"]
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()


class Trainer(BaseTrainer):
    def train_step(self, batch):
        return {"loss": self.model(batch).pow(2).mean()}


def train(flag):
    torch.manual_seed(18)
    model = torch.nn.Linear(4, 2)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), use_amp=flag)
    trainer.train_epoch([torch.randn(8, 4) for _ in range(4)])
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
