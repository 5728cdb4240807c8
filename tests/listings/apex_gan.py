"""Apex's DCGAN example in small: two models, two optimizers, three losses with a scale each."""

import torch
from apex import amp


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    data = torch.randn(64, 2) * 0.3 + torch.tensor([2.0, -1.0])
    netD = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.LeakyReLU(0.2), torch.nn.Linear(16, 1))
    netG = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    criterion = torch.nn.BCEWithLogitsLoss()
    real_label, fake_label = torch.ones(64, 1), torch.zeros(64, 1)

    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.02, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0005, betas=(0.5, 0.999))

    [netD, netG], [optimizerD, optimizerG] = amp.initialize(
        [netD, netG], [optimizerD, optimizerG], opt_level="O1", num_losses=3
    )

    losses = []
    for i in range(steps):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        output = netD(data)
        errD_real = criterion(output, real_label)
        with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
            errD_real_scaled.backward()

        noise = torch.randn(64, 4)
        fake = netG(noise)
        output = netD(fake.detach())
        errD_fake = criterion(output, fake_label)
        with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
            errD_fake_scaled.backward()
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, real_label)
        with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
            errG_scaled.backward()
        optimizerG.step()
        # The generator learns slowly here, so that the discriminator's loss falls.
        losses.append(errD_real.item() + errD_fake.item())
    return losses
