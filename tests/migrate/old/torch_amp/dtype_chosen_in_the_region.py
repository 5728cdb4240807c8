"""A region's dtype is chosen where it is entered, by an option that the trainer keeps."""

from types import SimpleNamespace

import torch
from torch.cuda.amp import GradScaler, autocast


class TemplateTrainer:
    def __init__(self, args):
        self.args = args
        self.learner = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=0.01)
        self.batches = self._batches()
        self.scaler = GradScaler(init_scale=512.0)

    def _batches(self):
        return [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(4)]

    def epoch(self):
        for x, y in self.batches:
            self.optimizer.zero_grad()
            with autocast(dtype=torch.float16 if self.args.dtype == "float16" else torch.float32):
                loss = (self.learner(x) - y).pow(2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def train(flag):
    torch.manual_seed(23)
    trainer = TemplateTrainer(SimpleNamespace(dtype="float16" if flag else "float32"))
    trainer.epoch()
    return [w for p in trainer.learner.parameters() for w in p.detach().flatten().tolist()]
