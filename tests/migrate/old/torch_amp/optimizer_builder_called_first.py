"""A trainer that builds its optimizer in a method, when it is made, and its scaler when training begins."""

import torch
from torch.cuda import amp


class Trainer:
    def __init__(self, mixed):
        self.mixed = mixed
        model = torch.nn.Linear(4, 2)
        self.optimizer = self.get_optimizer(model)
        self.model = model

    def get_optimizer(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return optimizer

    def train(self, steps):
        self.train_before_loop()
        for _ in range(steps):
            self.train_in_steps(torch.randn(8, 4))

    def train_before_loop(self):
        self.scaler = amp.GradScaler(enabled=self.mixed, init_scale=128.0)

    def train_in_steps(self, images):
        with amp.autocast(enabled=self.mixed):
            loss = self.model(images).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.update_optimizer()

    def update_optimizer(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def train(flag):
    torch.manual_seed(7)
    trainer = Trainer(flag)
    trainer.train(4)
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
