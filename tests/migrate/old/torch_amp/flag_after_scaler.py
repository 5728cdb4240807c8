"""The flag and the dtype are chosen behind the line that makes the scaler: in a function, and in a class."""

import torch


class Trainer:
    def __init__(self, net, flag):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.cuda.amp.GradScaler(init_scale=256.0)
        self.use_amp = flag

    def take(self, x):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
            loss = self.net(x).pow(2).mean()
        if self.use_amp:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()


def by_function(net, data, flag):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0)
    kind = torch.bfloat16 if flag else torch.float16
    for x in data:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=kind):
            loss = net(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train(flag):
    torch.manual_seed(9)
    nets, data = [torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)], [torch.randn(4, 5) for _ in range(3)]
    trainer = Trainer(nets[0], flag)
    for x in data:
        trainer.take(x)
    by_function(nets[1], data, flag)
    return [w for net in nets for p in net.parameters() for w in p.detach().flatten().tolist()]
