"""An agent that makes an optimizer for each network that it was given."""

import torch


class Agent:
    def __init__(self, actor, critic, mixed):
        self.actor, self.critic = actor, critic
        self.scaler = torch.cuda.amp.GradScaler(enabled=mixed, init_scale=128.0)
        self.mixed = mixed
        if self.actor is not None:
            self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.1)
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.actor_optimizer, 10)
        if self.critic is not None:
            self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)

    def update(self, states):
        with torch.cuda.amp.autocast(enabled=self.mixed):
            loss = self.actor(states).pow(2).mean()
        self.actor_optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.actor_optimizer)
        if self.critic is not None:
            with torch.cuda.amp.autocast(enabled=self.mixed):
                critic_loss = self.critic(states).mean().pow(2)
            self.critic_optimizer.zero_grad()
            self.scaler.scale(critic_loss).backward()
            self.scaler.step(self.critic_optimizer)
        self.scaler.update()


def train(flag):
    torch.manual_seed(5)
    found = []
    for critic in (None, torch.nn.Linear(4, 1)):
        agent = Agent(torch.nn.Linear(4, 2), critic, flag)
        for _ in range(3):
            agent.update(torch.randn(8, 4))
        found += [w for p in agent.actor.parameters() for w in p.detach().flatten().tolist()]
    return found
