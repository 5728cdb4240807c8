"""A method returns the region, or a context that does nothing, and the update enters it."""

import contextlib

import torch
from torch.cuda.amp import GradScaler


class Agent:
    def __init__(self, net, use_amp):
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.use_amp = use_amp
        self.grad_scaler = GradScaler(enabled=self.use_amp, init_scale=256.0)

    def _autocast_ctx(self):
        if self.use_amp:
            return torch.autocast(device_type="cuda", dtype=torch.float16)
        return contextlib.nullcontext()

    def update(self, x):
        with self._autocast_ctx():
            loss = (self.net(x) - 1.0).pow(2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        self.grad_scaler.scale(loss).backward()
        self.grad_scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()


def train(flag):
    torch.manual_seed(31)
    agent = Agent(torch.nn.Linear(5, 3), flag)
    for _ in range(3):
        agent.update(torch.randn(4, 5))
    return [w for p in agent.net.parameters() for w in p.detach().flatten().tolist()]
