"""A trainer whose losses go backward in a function that hands keyword arguments on."""

import copy

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


class Trainer:
    def __init__(self, model, lr, accumulate, fp16=False):
        self.model = model
        self.average = copy.deepcopy(self.model)
        self.accumulate = accumulate
        self.opt = torch.optim.SGD(model.parameters(), lr=lr)
        assert not fp16 or APEX_AVAILABLE
        self.fp16 = fp16
        if fp16:
            (self.model, self.average), self.opt = amp.initialize(
                [self.model, self.average], self.opt, opt_level="O1", loss_scale=128.0
            )

    def move_average(self):
        for current, kept in zip(self.model.parameters(), self.average.parameters()):
            kept.data = kept.data * 0.5 + current.data * 0.5

    def train(self, steps):
        for _ in range(steps):
            for _ in range(self.accumulate):
                loss = self.model(torch.randn(8, 4)).pow(2).mean()
                loss_backwards(self.fp16, loss / self.accumulate, self.opt)
            self.opt.step()
            self.opt.zero_grad()
            self.move_average()


def train(flag):
    torch.manual_seed(3)
    trainer = Trainer(torch.nn.Linear(4, 2), 0.1, 2, fp16=flag)
    trainer.train(4)
    kept = (trainer.model, trainer.average)
    return [w for net in kept for p in net.parameters() for w in p.detach().flatten().tolist()]
