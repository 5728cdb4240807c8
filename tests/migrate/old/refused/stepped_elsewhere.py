"""An agent whose branch without AMP hands its optimizer to another file's function, which steps it."""

import torch
from tpu import mark_step, optimizer_step


class Agent:
    def __init__(self, config):
        self.use_amp = config.use_amp
        self.network = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.scaler = torch.amp.GradScaler("cuda") if self.use_amp else None

    def learn(self, seen, wanted):
        if self.use_amp:
            with torch.amp.autocast("cuda", dtype=torch.float16):
                loss = (self.network(seen) - wanted).square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss = (self.network(seen) - wanted).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            optimizer_step(self.optimizer, barrier=True)
            mark_step()
        return loss.item()
