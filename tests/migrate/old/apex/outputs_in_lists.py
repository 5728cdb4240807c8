"""Parts of a network put their outputs into lists, in loops too, that the next part or the loss is computed from."""

import torch
from apex import amp


class Trainer:
    def __init__(self, flag):
        self.encoder, self.gate = torch.nn.Linear(6, 8), torch.nn.Linear(6, 1)
        self.decoder = torch.nn.Linear(8, 2)
        parameters = [p for m in (self.encoder, self.gate, self.decoder) for p in m.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.5)
        [self.encoder, self.gate, self.decoder], self.optimizer = amp.initialize(
            [self.encoder, self.gate, self.decoder], self.optimizer, opt_level="O1" if flag else "O0", loss_scale=128.0
        )
        self.gates = []

    def weigh(self, frames):
        self.gates = []
        for part in frames.chunk(1):
            self.gates.append(self.gate(part).sigmoid())

    def step(self, frames, labels):
        self.weigh(frames)
        features, repeated, outs = [], [], {}
        for part in frames.chunk(1):
            features.append(self.encoder(part))
        for feature in features:
            repeated += [feature.repeat(2, 1)]
        for k in range(len(repeated)):
            outs[k] = self.decoder(repeated[k] * self.gates[k].repeat(2, 1))
        loss = (torch.stack(list(outs.values())) - labels).pow(2).mean()
        self.optimizer.zero_grad()
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()


def train(flag):
    torch.manual_seed(21)
    trainer = Trainer(flag)
    for _ in range(6):
        trainer.step(torch.randn(5, 6), torch.randn(1, 10, 2))
    models = (trainer.encoder, trainer.gate, trainer.decoder)
    return [w for m in models for p in m.parameters() for w in p.detach().flatten().tolist()]
