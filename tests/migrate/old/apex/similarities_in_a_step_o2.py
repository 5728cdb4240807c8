"""O2 casts the model alone: the similarities that a step computes from its outputs are float32."""

import torch
from apex import amp
from torch.nn import functional as F


class Contrast:
    def __init__(self, flag):
        self.flag = flag

    def _step(self, model, left, right):
        # two views of one batch
        ours = model(left)
        theirs = model(right)
        if len(left) > 1:
            ours, theirs = F.normalize(ours, dim=1), F.normalize(theirs, dim=1)
        return F.cross_entropy(ours @ theirs.t() / 0.01, torch.arange(len(left)))

    def validate(self, model, x):
        with torch.no_grad():
            return self._step(model, x, x.flip(1)).item()

    def fit(self):
        model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if self.flag:
            model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        for _ in range(5):
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            loss = self._step(model, x, x + 0.1 * torch.randn(8, 6))
            if self.flag:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
            self.validate(model, x)
        return [w for p in model.parameters() for w in p.detach().flatten().float().tolist()]


def train(flag):
    torch.manual_seed(47)
    return Contrast(flag).fit()
