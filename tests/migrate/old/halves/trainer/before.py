"""The caller as it was."""

import torch
from engine import Trainer


def train(flag):
    torch.manual_seed(3)
    net = torch.nn.Linear(7, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    trainer = Trainer(net, optimizer, torch.cuda.amp.GradScaler(init_scale=128.0, enabled=flag))
    for _ in range(6):
        trainer.train_in_steps(torch.randn(4, 7), torch.randn(4, 2))
    return [w for p in net.parameters() for w in p.detach().flatten().tolist()]
