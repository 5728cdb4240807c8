"""Losses are weighed by what the script calls their scales; the optimizer is one of three networks."""

import itertools

import torch


class Agent:
    def __init__(self, flag):
        self.policy = torch.nn.Linear(4, 2)
        self.value = torch.nn.Linear(4, 1)
        self._value_loss_scale = 0.5
        self._entropy_loss_scale = 0.01
        self.scaler = torch.amp.GradScaler("cuda", enabled=flag)
        self._mixed_precision = flag
        parameters = itertools.chain(self.policy.parameters(), self.value.parameters())
        self.optimizer = torch.optim.Adam(parameters, lr=0.02)

    def update(self, states, returns):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self._mixed_precision):
            log_prob = torch.log_softmax(self.policy(states).float(), dim=-1)
            policy_loss = -log_prob[:, 0].mean()
            entropy_loss = self._entropy_loss_scale * (log_prob.exp() * log_prob).sum(-1).mean()
            value_loss = (self.value(states).float().squeeze(-1) - returns).pow(2).mean()
            value_loss *= self._value_loss_scale
        self.optimizer.zero_grad()
        self.scaler.scale(policy_loss + entropy_loss + value_loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def train(flag):
    torch.manual_seed(13)
    agent = Agent(flag)
    for _ in range(5):
        agent.update(torch.randn(16, 4), torch.randn(16))
    models = (agent.policy, agent.value)
    return [w for m in models for p in m.parameters() for w in p.detach().flatten().tolist()]
