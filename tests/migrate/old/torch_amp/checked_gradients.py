"""A method checks the loss and clips before each step; without the flag it does so too, and nothing is unscaled."""

import torch


class Brain:
    def __init__(self, modules, auto_mix_prec):
        self.modules = modules
        self.auto_mix_prec = auto_mix_prec
        self.optimizer = torch.optim.SGD(self.modules.parameters(), lr=0.3)
        if self.auto_mix_prec:
            self.scaler = torch.cuda.amp.GradScaler(init_scale=1024.0)

    def compute_forward(self, batch):
        return self.modules["net"](batch)

    def compute_objectives(self, outputs, batch):
        return (outputs - batch.sum(1, keepdim=True)).abs().mean()

    def fit_batch(self, batch):
        if self.auto_mix_prec:
            self.optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                outputs = self.compute_forward(batch)
                loss = self.compute_objectives(outputs, batch)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            if self.check_gradients(loss):
                self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            outputs = self.compute_forward(batch)
            loss = self.compute_objectives(outputs, batch)
            loss.backward()
            if self.check_gradients(loss):
                self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def check_gradients(self, loss):
        if not torch.isfinite(loss):
            return False
        torch.nn.utils.clip_grad_norm_((p for p in self.modules.parameters()), 0.2)
        return True


def train(flag):
    torch.manual_seed(14)
    net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
    brain = Brain(torch.nn.ModuleDict({"net": net}), flag)
    for step in range(6):
        batch = torch.randn(8, 6)
        brain.fit_batch(batch * float("inf") if step == 2 else batch)
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
