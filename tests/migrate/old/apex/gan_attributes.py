"""Forward, losses and steps of a GAN in methods of a model class."""

import torch
from apex import amp


class Model:
    def __init__(self, use_amp):
        self.use_amp = use_amp
        self.netG = torch.nn.Linear(4, 4)
        self.netD = torch.nn.Linear(4, 1)
        self.optimizer_G = torch.optim.SGD(self.netG.parameters(), lr=0.02)
        self.optimizer_D = torch.optim.SGD(self.netD.parameters(), lr=0.02)
        if self.use_amp:
            [self.netG, self.netD], [self.optimizer_G, self.optimizer_D] = amp.initialize(
                [self.netG, self.netD], [self.optimizer_G, self.optimizer_D], opt_level="O1", num_losses=2, loss_scale=128.0
            )

    def set_input(self, data):
        self.real = data

    def forward(self):
        self.fake = self.netG(self.real)

    def backward_D(self):
        pred_real = self.netD(self.real)
        pred_fake = self.netD(self.fake.detach())
        self.loss_D = (pred_fake.pow(2).mean() + (pred_real - 1).pow(2).mean()) * 0.5
        if self.use_amp:
            with amp.scale_loss(self.loss_D, self.optimizer_D, loss_id=0) as loss_D_scaled:
                loss_D_scaled.backward()
        else:
            self.loss_D.backward()

    def backward_G(self):
        self.loss_G = (self.netD(self.fake) - 1).pow(2).mean()
        if self.use_amp:
            with amp.scale_loss(self.loss_G, self.optimizer_G, loss_id=1) as loss_G_scaled:
                loss_G_scaled.backward()
        else:
            self.loss_G.backward()

    def optimize_parameters(self):
        self.forward()
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()


def train(flag):
    torch.manual_seed(10)
    model = Model(flag)
    for _ in range(4):
        model.set_input(torch.randn(8, 4))
        model.optimize_parameters()
    nets = (model.netG, model.netD)
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
