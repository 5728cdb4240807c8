"""fast-bert's learner: fit and the search for a learning rate each initialize Apex, and one method trains for both."""

import copy

import torch
from apex import amp


class Learner:
    def __init__(self, model, fp16):
        self.model = model
        self.fp16 = fp16

    def fit(self, data):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if self.fp16:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O0", loss_scale=4.0)
        for x in data:
            self.take(x)

    def find_lr(self, data):
        saved = copy.deepcopy(self.model.state_dict())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        if self.fp16:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O0", loss_scale=4.0)
        for x in data:
            self.take(x)
        tried = [w for p in self.model.parameters() for w in p.detach().flatten().tolist()]
        self.model.load_state_dict(saved)
        return tried

    def take(self, x):
        loss = (self.model(x) - 1.0).pow(2).mean()
        if self.fp16:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def train(flag):
    torch.manual_seed(40)
    data = [torch.randn(4, 5) for _ in range(2)]
    learner = Learner(torch.nn.Linear(5, 3), flag)
    tried = learner.find_lr(data)
    learner.fit(data)
    return tried + [w for p in learner.model.parameters() for w in p.detach().flatten().tolist()]
