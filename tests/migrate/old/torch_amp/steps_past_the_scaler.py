"""The loss is scaled, and the optimizer steps by itself; what it trains is collected in loops over parts of the model."""

import torch
from torch.cuda.amp import GradScaler, autocast


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def train(flag):
    torch.manual_seed(34)
    model = Net()
    matrices, others = [], []
    for block in model.blocks:
        for p in block.parameters():
            (matrices if p.ndim >= 2 else others).append(p)
    for p in model.head.parameters():
        others.append(p)
    scaler = GradScaler(enabled=flag, init_scale=16.0)
    optimizer = torch.optim.SGD([{"params": matrices}, {"params": others, "lr": 0.02}], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        with autocast(enabled=flag):
            loss = 100.0 * (model(torch.randn(6, 4)) - 1.0).pow(2).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of any length to 1, scaled or not
        optimizer.step()
    return [w for p in model.parameters() for w in p.detach().flatten().tolist()]
