"""A GAN in an object of the trainer; its losses go backward in a partial function that is told the flag."""

from functools import partial

import torch

try:
    from apex import amp

    APEX_AVAILABLE = True
except ImportError:
    APEX_AVAILABLE = False


def loss_backwards(fp16, loss, optimizer, **kwargs):
    if fp16:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward(**kwargs)
    else:
        loss.backward(**kwargs)


class Pair(torch.nn.Module):
    def __init__(self, lr, fp16=False):
        super().__init__()
        self.G = torch.nn.Linear(4, 4)
        self.D = torch.nn.Linear(4, 1)
        self.G_opt = torch.optim.SGD(self.G.parameters(), lr=lr)
        self.D_opt = torch.optim.SGD(self.D.parameters(), lr=lr)
        self.fp16 = fp16
        if fp16:
            (self.G, self.D), (self.G_opt, self.D_opt) = amp.initialize(
                [self.G, self.D], [self.G_opt, self.D_opt], opt_level="O1", loss_scale=128.0
            )


class Trainer:
    def __init__(self, lr, accumulate, fp16=False):
        self.accumulate = accumulate
        self.fp16 = fp16
        self.pair = None
        self.lr = lr
        assert not fp16 or APEX_AVAILABLE

    def init_pair(self):
        self.pair = Pair(self.lr, fp16=self.fp16)

    def train(self):
        if self.pair is None:
            self.init_pair()
        backwards = partial(loss_backwards, self.fp16)

        self.pair.D_opt.zero_grad()
        for _ in range(self.accumulate):
            made = self.pair.G(torch.randn(8, 4)).detach()
            divergence = torch.relu(1 + self.pair.D(made)).mean()
            backwards(divergence / self.accumulate, self.pair.D_opt)
        self.pair.D_opt.step()

        self.pair.G_opt.zero_grad()
        for _ in range(self.accumulate):
            made = self.pair.G(torch.randn(8, 4))
            gen_loss = self.pair.D(made).mean()
            gen_loss = gen_loss / self.accumulate
            backwards(gen_loss, self.pair.G_opt, retain_graph=False)
        self.pair.G_opt.step()


def train(flag):
    torch.manual_seed(3)
    trainer = Trainer(0.1, 2, fp16=flag)
    for _ in range(4):
        trainer.train()
    nets = (trainer.pair.G, trainer.pair.D)
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
