"""A gradient penalty in float32, inside a disabled region, and two optimizers with one scaler."""

import torch
from torch import autocast, nn
from torch.cuda.amp import GradScaler


def gradient_penalty(critic, real, fake):
    with autocast("cuda", enabled=False):
        mixed = (real.float() * 0.5 + fake.float() * 0.5).requires_grad_(True)
        score = critic(mixed).float()
        grad = torch.autograd.grad(score.sum(), mixed, create_graph=True)[0]
        return ((grad.norm(2, dim=1) - 1) ** 2).mean()


def train(flag):
    torch.manual_seed(8)
    gen, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    opt_gen = torch.optim.SGD(gen.parameters(), lr=0.05)
    opt_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
    scaler = GradScaler(init_scale=128.0, enabled=flag)
    for _ in range(3):
        real = torch.randn(6, 4)
        for _ in range(2):
            with autocast("cuda", enabled=flag, dtype=torch.float16):
                fake = gen(torch.randn(6, 3))
                critic_real = critic(real).mean()
                critic_fake = critic(fake.detach()).mean()
                loss_critic = critic_fake - critic_real
            loss_critic = loss_critic + 10 * gradient_penalty(critic, real, fake.detach())
            opt_critic.zero_grad()
            scaler.scale(loss_critic).backward()
            scaler.step(opt_critic)
            scaler.update()
        with autocast("cuda", enabled=flag, dtype=torch.float16):
            loss_gen = -critic(gen(torch.randn(6, 3))).mean()
        opt_gen.zero_grad()
        scaler.scale(loss_gen).backward()
        scaler.step(opt_gen)
        scaler.update()
    return [w for m in (gen, critic) for p in m.parameters() for w in p.detach().flatten().tolist()]
