"""pix2pixHD's script: the model comes wrapped without AMP, and each branch takes its optimizers where they are there."""

import torch
from types import SimpleNamespace


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.netG, self.netD = torch.nn.Linear(5, 4), torch.nn.Linear(4, 1)
        self.optimizer_G = torch.optim.SGD(self.netG.parameters(), lr=0.1)
        self.optimizer_D = torch.optim.SGD(self.netD.parameters(), lr=0.1)

    def forward(self, label):
        fake = self.netG(label)
        return (self.netD(fake) - 1).pow(2).mean(), self.netD(fake.detach()).pow(2).mean()


def create_model(opt):
    model = Pair()
    return model if opt.fp16 else torch.nn.DataParallel(model, device_ids=[])


def train(flag):
    torch.manual_seed(43)
    opt = SimpleNamespace(fp16=flag)
    model = create_model(opt)
    if opt.fp16:
        from apex import amp

        model, [optimizer_G, optimizer_D] = amp.initialize(
            model, [model.optimizer_G, model.optimizer_D], opt_level="O1", loss_scale=128.0, verbosity=0
        )
        model = torch.nn.DataParallel(model, device_ids=[])
    else:
        optimizer_G, optimizer_D = model.module.optimizer_G, model.module.optimizer_D
    for _ in range(4):
        losses = model(torch.ones(6, 5))
        loss_G, loss_D = losses
        optimizer_G.zero_grad()
        if opt.fp16:
            with amp.scale_loss(loss_G, optimizer_G) as scaled_loss:
                scaled_loss.backward()
        else:
            loss_G.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        if opt.fp16:
            with amp.scale_loss(loss_D, optimizer_D) as scaled_loss:
                scaled_loss.backward()
        else:
            loss_D.backward()
        optimizer_D.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
