"""A GAN with a loss id for each loss, behind a flag."""

import torch
from apex import amp


def train(flag):
    torch.manual_seed(9)
    netG, netD = torch.nn.Linear(3, 6), torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optG = torch.optim.SGD(netG.parameters(), lr=0.05)
    optD = torch.optim.SGD(netD.parameters(), lr=0.05)
    criterion = torch.nn.BCEWithLogitsLoss()
    if flag:
        [netD, netG], [optD, optG] = amp.initialize([netD, netG], [optD, optG], opt_level="O1", num_losses=2, loss_scale=128.0)
    ones, zeros = torch.ones(10, 1), torch.zeros(10, 1)
    for _ in range(4):
        real, noise = torch.randn(10, 6), torch.randn(10, 3)
        fake = netG(noise)
        netD.zero_grad()
        d_loss = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
        if flag:
            with amp.scale_loss(d_loss, optD, loss_id=0) as scaled:
                scaled.backward()
        else:
            d_loss.backward()
        optD.step()
        netG.zero_grad()
        g_loss = criterion(netD(fake), ones)
        if flag:
            with amp.scale_loss(g_loss, optG, loss_id=1) as scaled:
                scaled.backward()
        else:
            g_loss.backward()
        optG.step()
    return [w for net in (netG, netD) for p in net.parameters() for w in p.detach().flatten().tolist()]
