"""O2 casts the model alone: its outputs are float32, and so are a matrix product and the entropy of probabilities."""

import torch
from apex import amp


class Trainer:
    def __init__(self, flag):
        self.flag, self.criterion = flag, torch.nn.BCELoss()
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3), torch.nn.Sigmoid())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        if flag:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O2", verbosity=0)

    def fit(self, x, y):
        outputs = self.model(x)
        similarity = outputs @ outputs.t() / 0.1
        loss = self.criterion(outputs, y) + torch.nn.functional.cross_entropy(similarity, torch.arange(len(x)))
        self.optimizer.zero_grad()
        if self.flag:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        self.optimizer.step()


def train(flag):
    torch.manual_seed(46)
    trainer = Trainer(flag)
    for _ in range(5):
        trainer.fit(torch.randn(8, 6), torch.rand(8, 3))
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().float().tolist()]
