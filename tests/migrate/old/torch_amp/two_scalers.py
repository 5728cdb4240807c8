"""A GAN with a scaler for each optimizer."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train(flag):
    torch.manual_seed(7)
    gen, disc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)
    opt_gen = torch.optim.SGD(gen.parameters(), lr=0.1)
    opt_disc = torch.optim.SGD(disc.parameters(), lr=0.1)
    g_scaler = GradScaler(init_scale=1024.0, enabled=flag)
    d_scaler = GradScaler(init_scale=1024.0, enabled=flag)
    bce = torch.nn.BCEWithLogitsLoss()
    for _ in range(4):
        real, noise = torch.randn(8, 5), torch.randn(8, 3)
        with autocast(enabled=flag):
            fake = gen(noise)
            d_real, d_fake = disc(real), disc(fake.detach())
            d_loss = bce(d_real, torch.ones_like(d_real)) + bce(d_fake, torch.zeros_like(d_fake))
        opt_disc.zero_grad()
        d_scaler.scale(d_loss).backward()
        d_scaler.step(opt_disc)
        d_scaler.update()
        with autocast(enabled=flag):
            d_fake = disc(fake)
            g_loss = bce(d_fake, torch.ones_like(d_fake))
        opt_gen.zero_grad()
        g_scaler.scale(g_loss).backward()
        g_scaler.step(opt_gen)
        g_scaler.update()
    return [w for net in (gen, disc) for p in net.parameters() for w in p.detach().flatten().tolist()]
