"""A trainer that keeps model, optimizer and the flag in attributes; backward and step are in other methods."""

import torch
from apex import amp


class Trainer:
    def __init__(self, use_amp):
        self.amp = use_amp
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.grad_steps = 2
        if self.amp:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1", verbosity=0)

    def backward(self, loss, step):
        if self.amp:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        if step % self.grad_steps == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def run(self, batches):
        for step, (x, y) in enumerate(batches, 1):
            prediction = self.model(x)
            loss = (prediction - y).pow(2).mean()
            self.backward(loss, step)


def train(flag):
    torch.manual_seed(2)
    trainer = Trainer(flag)
    trainer.run([(torch.randn(8, 5), torch.randn(8, 1)) for _ in range(8)])
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
