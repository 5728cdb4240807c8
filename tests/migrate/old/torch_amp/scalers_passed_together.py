"""CycleGAN's tutorial: a scaler for each optimizer, both passed to the function that trains an epoch."""

import torch
from torch.cuda.amp import GradScaler, autocast


def train_epoch(disc, gen, data, opt_disc, opt_gen, mse, d_scaler, g_scaler, flag):
    for real in data:
        with autocast(enabled=flag):
            fake = gen(real)
            d_loss = mse(disc(real), torch.ones(4, 1)) + mse(disc(fake.detach()), torch.zeros(4, 1))
        opt_disc.zero_grad()
        d_scaler.scale(d_loss).backward()
        d_scaler.step(opt_disc)
        d_scaler.update()
        with autocast(enabled=flag):
            g_loss = mse(disc(fake), torch.ones(4, 1)) + (real - gen(fake)).abs().mean()
        opt_gen.zero_grad()
        g_scaler.scale(g_loss).backward()
        g_scaler.step(opt_gen)
        g_scaler.update()


def train(flag):
    torch.manual_seed(32)
    disc, gen = torch.nn.Linear(3, 1), torch.nn.Linear(3, 3)
    opt_disc = torch.optim.SGD(disc.parameters(), lr=0.05)
    opt_gen = torch.optim.SGD(gen.parameters(), lr=0.05)
    g_scaler = GradScaler(enabled=flag, init_scale=128.0)
    d_scaler = GradScaler(enabled=flag, init_scale=128.0)
    data = [torch.randn(4, 3) for _ in range(2)]
    for _ in range(2):
        train_epoch(disc, gen, data, opt_disc, opt_gen, torch.nn.MSELoss(), d_scaler=d_scaler, g_scaler=g_scaler,
                    flag=flag)
        train_epoch(disc, gen, data, opt_disc, opt_gen, torch.nn.MSELoss(), d_scaler, g_scaler, flag)
    return [w for m in (disc, gen) for p in m.parameters() for w in p.detach().flatten().tolist()]
