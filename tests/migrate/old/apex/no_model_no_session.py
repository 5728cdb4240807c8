"""A method of continual learning: a subclass may have no model, and then nothing is initialized."""

import torch
from apex import amp


class Method:
    def __init__(self, level, device):
        self.model, self.optimizer = None, None
        self.build()
        if self.model is not None:
            self.model, self.optimizer = amp.initialize(
                self.model.to(device), self.optimizer, opt_level=level, verbosity=0
            )
            self.model = torch.nn.DataParallel(self.model, device_ids=[])

    def build(self):
        pass


class Finetuned(Method):
    def build(self):
        self.model = torch.nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def fit(self, x, y):
        optim, model = self.optimizer, self.model
        for _ in range(5):
            optim.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            with amp.scale_loss(loss, optim) as scaled_loss:
                scaled_loss.backward()
            optim.step()


def train(flag):
    torch.manual_seed(44)
    assert Method("O1", "cpu").model is None
    method = Finetuned("O1" if flag else "O0", "cpu")
    method.fit(torch.randn(10, 6), torch.randint(3, (10,)))
    return [w for p in method.model.parameters() for w in p.detach().flatten().tolist()]
