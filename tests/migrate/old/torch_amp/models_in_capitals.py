"""Models called G and D, as in papers, and a plain branch beside each scaled step."""

import torch


class Trainer:
    def __init__(self, G, D, use_amp):
        self.G, self.D = G, D
        self.opt_G = torch.optim.SGD(self.G.parameters(), lr=0.05)
        self.opt_D = torch.optim.SGD(self.D.parameters(), lr=0.05)
        self.use_amp = use_amp
        self.scaler_G = torch.amp.GradScaler("cuda", init_scale=64.0) if self.use_amp else None
        self.scaler_D = torch.amp.GradScaler("cuda", init_scale=64.0) if self.use_amp else None

    def step(self, x, y):
        self.opt_D.zero_grad()
        if self.use_amp:
            with torch.amp.autocast("cuda"):
                fake = self.G(x)
                loss_D = (self.D(y) - 1.0).pow(2).mean() + self.D(fake.detach()).pow(2).mean()
            self.scaler_D.scale(loss_D).backward()
            self.scaler_D.step(self.opt_D)
            self.scaler_D.update()
        else:
            fake = self.G(x)
            loss_D = (self.D(y) - 1.0).pow(2).mean() + self.D(fake.detach()).pow(2).mean()
            loss_D.backward()
            self.opt_D.step()
        self.opt_G.zero_grad()
        if self.use_amp:
            with torch.amp.autocast("cuda"):
                loss_G = (self.D(self.G(x)) - 1.0).pow(2).mean()
            self.scaler_G.scale(loss_G).backward()
            self.scaler_G.step(self.opt_G)
            self.scaler_G.update()
        else:
            loss_G = (self.D(self.G(x)) - 1.0).pow(2).mean()
            loss_G.backward()
            self.opt_G.step()


def train(flag):
    torch.manual_seed(33)
    trainer = Trainer(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1), flag)
    for _ in range(3):
        trainer.step(torch.randn(4, 3), torch.randn(4, 3))
    return [w for m in (trainer.G, trainer.D) for p in m.parameters() for w in p.detach().flatten().tolist()]
