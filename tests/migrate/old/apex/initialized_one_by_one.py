"""A GAN whose networks are passed to ``initialize`` one after the other."""

import torch
from apex import amp


class Trainer:
    def __init__(self, level):
        self.generator, self.critic = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        self.g_optimizer = torch.optim.SGD(self.generator.parameters(), lr=0.05)
        self.d_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.05)
        self.generator, self.g_optimizer = amp.initialize(self.generator, self.g_optimizer, opt_level=level)
        self.critic, self.d_optimizer = amp.initialize(self.critic, self.d_optimizer, opt_level=level)

    def g_loss(self, noise):
        return (self.critic(self.generator(noise)) - 1).pow(2).mean()

    def d_loss(self, noise, real):
        fake = self.critic(self.generator(noise).detach())
        return fake.pow(2).mean() + (self.critic(real) - 1).pow(2).mean()

    def step(self, noise, real):
        self.g_optimizer.zero_grad()
        loss = self.g_loss(noise)
        with amp.scale_loss(loss, self.g_optimizer) as scaled_loss:
            scaled_loss.backward()
        self.g_optimizer.step()
        self.d_optimizer.zero_grad()
        loss = self.d_loss(noise, real)
        with amp.scale_loss(loss, self.d_optimizer) as scaled_loss:
            scaled_loss.backward()
        self.d_optimizer.step()


def train(flag):
    torch.manual_seed(12)
    trainer = Trainer("O1" if flag else "O0")
    for _ in range(3):
        trainer.step(torch.randn(6, 3), torch.randn(6, 4))
    models = (trainer.generator, trainer.critic)
    return [w for m in models for p in m.parameters() for w in p.detach().flatten().tolist()]
