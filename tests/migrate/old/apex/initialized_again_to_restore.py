"""A trainer whose constructor initializes, and that initializes again where a state has amp's; this one has not."""

import torch

try:
    from apex import amp
except ImportError:
    amp = None


class Trainer:
    def __init__(self, model, lr, opt_level=None):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.opt_level = opt_level
        if self.opt_level is not None:
            if amp is None:
                raise RuntimeError("opt_level needs Apex")
            self.model, self.optimizer = amp.initialize(
                self.model, self.optimizer, opt_level=self.opt_level
            )

    def state(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.opt_level is not None:
            state["amp"] = amp.state_dict()
        return state

    def restore(self, state):
        if self.opt_level is not None and "amp" in state:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level=self.opt_level)
            amp.load_state_dict(state["amp"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def fit(self, steps):
        for _ in range(steps):
            x, target = torch.randn(8, 6), torch.randn(8, 2)
            self.optimizer.zero_grad()
            loss = (self.model(x) - target).pow(2).mean()
            if self.opt_level is not None:
                with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            self.optimizer.step()


def train(flag):
    torch.manual_seed(41)
    plain = Trainer(torch.nn.Linear(6, 2), 0.05)
    plain.fit(2)
    trainer = Trainer(torch.nn.Linear(6, 2), 0.05, "O1" if flag else None)
    trainer.restore(plain.state())
    trainer.fit(2)
    return [w for p in trainer.model.parameters() for w in p.detach().flatten().tolist()]
