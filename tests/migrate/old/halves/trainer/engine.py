"""A trainer that is given all it trains with; another method steps when enough micro-batches are in."""

import torch


class Trainer:
    def __init__(self, net, optimizer, scaler, accumulate=2):
        self.net = net
        self.optimizer = optimizer
        self.scaler = scaler
        self.accumulate = accumulate
        self.done = 0

    def train_in_steps(self, images, targets):
        with torch.cuda.amp.autocast(enabled=self.scaler.is_enabled()):
            predicted = self.net(images)
            total_loss = torch.nn.functional.mse_loss(predicted.float(), targets) / self.accumulate
        self.scaler.scale(total_loss).backward()
        self.update_optimizer()
        return total_loss.item()

    def update_optimizer(self):
        self.done += 1
        if self.done % self.accumulate == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()

    def state_dict(self):
        return {"net": self.net.state_dict(), "scaler": self.scaler.state_dict()}
