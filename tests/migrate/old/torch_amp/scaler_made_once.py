"""A trainer that makes its scaler the first time it is asked to, and has none before."""

import torch
from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, fp16):
        self.fp16 = fp16
        self.amp_grad_scaler = None
        self.network = self.optimizer = None

    def initialize(self):
        self.network = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self._maybe_init_amp()

    def save(self):
        saved = {"network": self.network.state_dict()}
        if self.amp_grad_scaler is not None:
            saved["amp_grad_scaler"] = self.amp_grad_scaler.state_dict()
        return saved

    def load(self, saved):
        if self.fp16:
            self._maybe_init_amp()
            if "amp_grad_scaler" in saved:
                self.amp_grad_scaler.load_state_dict(saved["amp_grad_scaler"])
        self.network.load_state_dict(saved["network"])
        self._maybe_init_amp()

    def _maybe_init_amp(self):
        if self.fp16 and self.amp_grad_scaler is None:
            self.amp_grad_scaler = GradScaler(init_scale=128.0)

    def run_iteration(self, data, target):
        self.optimizer.zero_grad()
        if self.fp16:
            with autocast():
                output = self.network(data)
                loss = (output - target).pow(2).mean()
            self.amp_grad_scaler.scale(loss).backward()
            self.amp_grad_scaler.step(self.optimizer)
            self.amp_grad_scaler.update()
        else:
            output = self.network(data)
            loss = (output - target).pow(2).mean()
            loss.backward()
            self.optimizer.step()

    def run_training(self, steps):
        self._maybe_init_amp()
        for _ in range(steps):
            self.run_iteration(torch.randn(8, 4), torch.randn(8, 2))


def train(flag):
    torch.manual_seed(4)
    trainer = Trainer(flag)
    trainer.initialize()
    trainer.run_training(2)
    trainer.load(trainer.save())
    trainer.run_training(2)
    return [w for p in trainer.network.parameters() for w in p.detach().flatten().tolist()]
