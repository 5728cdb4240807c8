"""Two optimizers under one scaler, as the DCGAN tutorial's loop is written with torch.cuda.amp; steps that overflow."""

import torch
from torch import amp, nn


class Trainer:
    def __init__(self):
        torch.manual_seed(2)
        self.netG = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.netD = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.optimizerG = torch.optim.Adam(self.netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.optimizerD = torch.optim.Adam(self.netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.criterion = nn.BCEWithLogitsLoss()
        self.scaler = amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=100)

    def step(self, real):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        # (1) Update D
        self.netD.zero_grad()
        with amp.autocast("cpu", torch.float16):
            errD_real = self.criterion(self.netD(real), ones)
        self.scaler.scale(errD_real).backward()
        with amp.autocast("cpu", torch.float16):
            fake = self.netG(torch.randn(len(real), 4))
            errD_fake = self.criterion(self.netD(fake.detach()), zeros)
        self.scaler.scale(errD_fake).backward()
        self.scaler.step(self.optimizerD)

        # (2) Update G
        self.netG.zero_grad()
        with amp.autocast("cpu", torch.float16):
            errG = self.criterion(self.netD(fake), ones)
        self.scaler.scale(errG).backward()
        self.scaler.step(self.optimizerG)
        self.scaler.update()
        return [errD_real.item(), errD_fake.item(), errG.item()]


def train(steps):
    trainer = Trainer()
    return [loss for _ in range(steps) for loss in trainer.step(torch.randn(8, 6))]
