"""A trainer that calls a method for its optimizer, and makes the scaler in the line behind."""

import torch


class Trainer:
    def __init__(self, flag):
        self.net = torch.nn.Linear(5, 3)
        self.build_optimizer(0.2)
        self.scaler = torch.cuda.amp.GradScaler(init_scale=512.0, enabled=flag)
        self.flag = flag

    def build_optimizer(self, lr):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr)

    def run(self, inputs, targets):
        self.optimizer.zero_grad()
        with torch.cuda.amp.autocast(enabled=self.flag):
            loss = torch.nn.functional.cross_entropy(self.net(inputs).float(), targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def train(flag):
    torch.manual_seed(23)
    trainer = Trainer(flag)
    for _ in range(4):
        trainer.run(torch.randn(6, 5), torch.randint(0, 3, (6,)))
    return [w for p in trainer.net.parameters() for w in p.detach().flatten().tolist()]
