"""A scaler for GPUs, and one that is turned off elsewhere, in two branches; two optimizers of a trainer."""

import torch
from torch.amp import GradScaler, autocast


class Trainer:
    def __init__(self, device, flag):
        self.device = device
        self.generator = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4))
        self.judge = torch.nn.Linear(4, 1)
        params = list(self.generator.parameters())
        self.opt_gen = torch.optim.Adam(params, lr=0.01)
        self.opt_judge = torch.optim.Adam(self.judge.parameters(), lr=0.01)
        self.use_amp = flag
        # a scaler is of use on GPUs alone
        if self.use_amp:
            self.scaler = GradScaler("cuda", enabled=True, init_scale=1024.0)
        else:
            self.scaler = GradScaler("cpu", enabled=False)

    def step(self, x):
        with autocast(device_type="cuda", enabled=self.use_amp):
            fake = self.generator(x)
            loss_gen = (self.judge(fake) - 1.0).pow(2).mean()
        self.opt_gen.zero_grad()
        self.scaler.scale(loss_gen).backward()
        self.scaler.unscale_(self.opt_gen)
        torch.nn.utils.clip_grad_norm_(self.generator.parameters(), 0.5)
        self.scaler.step(self.opt_gen)
        self.scaler.update()
        with autocast(device_type="cuda", enabled=self.use_amp):
            loss_judge = self.judge(x).pow(2).mean() + (self.judge(fake.detach()) - 1.0).pow(2).mean()
        self.opt_judge.zero_grad()
        self.scaler.scale(loss_judge).backward()
        self.scaler.step(self.opt_judge)
        self.scaler.update()


def train(flag):
    torch.manual_seed(18)
    trainer = Trainer("cpu", flag)
    for _ in range(4):
        trainer.step(torch.randn(8, 4))
    parts = (trainer.generator, trainer.judge)
    return [w for part in parts for p in part.parameters() for w in p.detach().flatten().tolist()]
