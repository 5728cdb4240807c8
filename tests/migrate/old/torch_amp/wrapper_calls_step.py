"""Backward and step are in methods of a helper class that is given optimizer and scaler."""

import torch


class Stepper:
    def __init__(self, optimizer, scaler, clip):
        self.optimizer = optimizer
        self.scaler = scaler
        self.clip = clip

    def __call__(self, loss, parameters):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def train(flag):
    torch.manual_seed(17)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=flag)
    stepper = Stepper(optimizer, scaler, 0.5)
    for _ in range(4):
        with torch.cuda.amp.autocast(enabled=flag):
            loss = model(torch.randn(8, 6)).pow(2).mean()
        stepper(loss, model.parameters())
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
