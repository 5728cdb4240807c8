"""A GAN with loss ids: two losses of the discriminator go backward one after the other."""

import torch
from apex import amp


def train(flag):
    torch.manual_seed(6)
    netG, netD = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    optimizerD = torch.optim.SGD(netD.parameters(), lr=0.05)
    optimizerG = torch.optim.SGD(netG.parameters(), lr=0.05)
    criterion = torch.nn.BCEWithLogitsLoss()
    [netD, netG], [optimizerD, optimizerG] = amp.initialize(
        [netD, netG], [optimizerD, optimizerG], opt_level="O1" if flag else "O0", num_losses=3
    )
    for _ in range(3):
        netD.zero_grad()
        output = netD(torch.randn(6, 4))
        errD_real = criterion(output, torch.ones(6, 1))
        with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
            errD_real_scaled.backward()
        fake = netG(torch.randn(6, 3))
        output = netD(fake.detach())
        errD_fake = criterion(output, torch.zeros(6, 1))
        with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
            errD_fake_scaled.backward()
        errD = errD_real + errD_fake
        optimizerD.step()
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, torch.ones(6, 1))
        with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
            errG_scaled.backward()
        optimizerG.step()
        assert errD.item() > 0
    return [w for m in (netG, netD) for p in m.parameters() for w in p.detach().flatten().tolist()]
