"""Two generators under one optimizer, two discriminators under two, a scaler for each."""

import itertools

import torch
from torch import nn


def train(flag):
    torch.manual_seed(6)
    disc_H, disc_Z = nn.Linear(4, 1), nn.Linear(4, 1)
    gen_Z, gen_H = nn.Linear(4, 4), nn.Linear(4, 4)
    opt_disc = torch.optim.SGD(list(disc_H.parameters()) + list(disc_Z.parameters()), lr=0.05)
    opt_gen = torch.optim.SGD(itertools.chain(gen_Z.parameters(), gen_H.parameters()), lr=0.05)
    mse, l1 = nn.MSELoss(), nn.L1Loss()
    g_scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=flag)
    d_scaler = torch.cuda.amp.GradScaler(init_scale=256.0, enabled=flag)
    for _ in range(3):
        zebra, horse = torch.randn(6, 4), torch.randn(6, 4)
        with torch.cuda.amp.autocast(enabled=flag):
            fake_horse = gen_H(zebra)
            D_H_real = disc_H(horse)
            D_H_fake = disc_H(fake_horse.detach())
            D_H_loss = mse(D_H_real, torch.ones_like(D_H_real)) + mse(D_H_fake, torch.zeros_like(D_H_fake))
            fake_zebra = gen_Z(horse)
            D_Z_real = disc_Z(zebra)
            D_Z_fake = disc_Z(fake_zebra.detach())
            D_Z_loss = mse(D_Z_real, torch.ones_like(D_Z_real)) + mse(D_Z_fake, torch.zeros_like(D_Z_fake))
            D_loss = (D_H_loss + D_Z_loss) / 2
        opt_disc.zero_grad()
        d_scaler.scale(D_loss).backward()
        d_scaler.step(opt_disc)
        d_scaler.update()
        with torch.cuda.amp.autocast(enabled=flag):
            D_H_fake = disc_H(fake_horse)
            D_Z_fake = disc_Z(fake_zebra)
            loss_G = mse(D_H_fake, torch.ones_like(D_H_fake)) + mse(D_Z_fake, torch.ones_like(D_Z_fake))
            cycle = l1(zebra, gen_Z(fake_horse)) + l1(horse, gen_H(fake_zebra))
            G_loss = loss_G + 10 * cycle
        opt_gen.zero_grad()
        g_scaler.scale(G_loss).backward()
        g_scaler.step(opt_gen)
        g_scaler.update()
    return [w for m in (gen_Z, gen_H, disc_H, disc_Z) for p in m.parameters() for w in p.detach().flatten().tolist()]
