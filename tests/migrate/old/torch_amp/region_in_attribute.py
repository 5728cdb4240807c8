"""An agent's class keeps its region in an attribute; a local flag says whether it does anything."""

from contextlib import nullcontext

import torch


class Agent:
    def __init__(self, use_amp):
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=0.003)
        self.scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
        self.ctx = torch.autocast("cuda", dtype=torch.float16) if use_amp else nullcontext()

    def values(self, states):
        with torch.no_grad(), self.ctx:
            return self.net(states).float().max(dim=1).values

    def learn(self, states, actions, following):
        target = 0.9 * self.values(following)
        with self.ctx:
            chosen = self.net(states).gather(1, actions)[:, 0]
            loss = torch.nn.functional.smooth_l1_loss(chosen, target)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def train(flag):
    torch.manual_seed(23)
    agent = Agent(flag)
    for _ in range(5):
        agent.learn(torch.randn(8, 6), torch.randint(0, 2, (8, 1)), torch.randn(8, 6))
    return [w for p in agent.net.parameters() for w in p.detach().flatten().tolist()]
